"""One setting of the engine under measurement: loaded once, run many times, in the calling thread.

Owns an executor and an engine core, without server or channel, so that what is timed is the engine. Life: `Arm(name,
config)` loads the model, `run(workload)` computes one workload from cold, `close()` frees it. Several arms may be
loaded at once; their threads sleep while another runs.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from octavo.bench.workload import Item, Workload
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.execution.factory import build_executor
from octavo.kvcache.tiers.disk import open_tier
from octavo.models.checkpoint import open_checkpoint
from octavo.models.locate import locate_model
from octavo.types import EngineStats, Executor, FinishReason, NewRequest, SamplingParams

Wrap = Callable[[Executor], Executor]
SLICE_SECONDS = 0.05
"""Long beside waking an arm's threads, short beside most of what else goes on in a machine."""


@dataclass(frozen=True)
class Run:
    """What one workload took. Times are seconds from the moment all requests were handed in."""

    seconds: float
    outputs: tuple[tuple[int, ...], ...]
    first: tuple[float, ...]
    """Time to each request's first token."""
    last: tuple[float, ...]
    """Time to each request's last token."""
    gaps: tuple[float, ...]
    """Times between two tokens of one request, of all requests, shortest first."""
    steps: int
    cached_tokens: int

    @property
    def longest_gap(self) -> float:
        return self.gaps[-1] if self.gaps else 0.0

    @property
    def p99_gap(self) -> float:
        """One gap in a hundred is longer."""
        return self.gaps[min(len(self.gaps) - 1, int(0.99 * len(self.gaps)))] if self.gaps else 0.0

    @property
    def tokens(self) -> int:
        return sum(len(output) for output in self.outputs)

    @property
    def rate(self) -> float:
        """Output tokens a second over the whole run, prompts included."""
        return self.tokens / self.seconds

    @property
    def decode_rate(self) -> float:
        """Output tokens a second after the last request's first token, where all lengths are equal."""
        begin = max(self.first)
        rest = self.tokens - len(self.outputs)
        return rest / (max(self.last) - begin) if max(self.last) > begin else 0.0


@dataclass(frozen=True)
class Sizes:
    """What a model computes a row, for shares of limits."""

    product_weights: int
    """Weights that a row is multiplied with: two operations each."""
    attention_operations: int
    """Operations a row and position of context, over all layers."""


def model_sizes(path: str) -> Sizes:
    """From the file's table of tensors; loads no weights."""
    checkpoint = open_checkpoint(path)
    try:
        spec = checkpoint.spec
        weights = 0.0
        for name, (_, shape) in checkpoint.sources().items():
            if len(shape) < 2 or (name == "embed.weight" and not spec.tied):
                continue
            share = spec.moe.top_k / spec.moe.experts if spec.moe and re.search(r"\.moe\.\d+\.", name) else 1.0
            weights += math.prod(shape) * share
        return Sizes(int(weights), 4 * spec.layers * spec.heads * spec.head_dim)
    finally:
        checkpoint.close()


class _Track:
    """What one request has got so far."""

    __slots__ = ("first", "gaps", "last", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.gaps: list[float] = []
        self.first = self.last = 0.0

    def take(self, tokens: list[int], now: float) -> None:
        if self.tokens:
            self.gaps.append(now - self.last)
        else:
            self.first = now
        self.tokens += tokens
        self.last = now


class Current:
    """A run under way. Its clock runs during its own steps alone, so that two runs can take turns."""

    def __init__(self, name: str, core: EngineCore, requests: list[NewRequest]) -> None:
        self._name = name
        self._core = core
        self._before = core.stats()
        self._tracks = {request.request_id: _Track() for request in requests}
        began = time.perf_counter()
        for request in requests:
            core.handle(request)
        self.seconds = time.perf_counter() - began

    @property
    def done(self) -> bool:
        """Every request has its answer."""
        return not self._core.has_work

    @property
    def counts(self) -> list[int]:
        """Tokens of each answer so far, in the requests' order."""
        return [len(track.tokens) for track in self._tracks.values()]

    def step(self) -> None:
        """One step of the engine."""
        began = time.perf_counter()
        output = self._core.step()
        self.seconds += time.perf_counter() - began
        for delta in output.deltas if output is not None else ():
            if delta.finish is FinishReason.ERROR:
                raise RuntimeError(f"{self._name}: a request failed: {delta.error}")
            if delta.tokens:
                self._tracks[delta.request_id].take(delta.tokens, self.seconds)

    def result(self) -> Run:
        """What it took, once done."""
        assert self.done
        tracks, after = self._tracks.values(), self._core.stats()
        return Run(
            seconds=self.seconds,
            outputs=tuple(tuple(track.tokens) for track in tracks),
            first=tuple(track.first for track in tracks),
            last=tuple(track.last for track in tracks),
            gaps=tuple(sorted(gap for track in tracks for gap in track.gaps)),
            steps=after.steps - self._before.steps,
            cached_tokens=after.cached_prompt_tokens - self._before.cached_prompt_tokens,
        )


def take_turns(arms: tuple[Arm, Arm], workload: Workload) -> tuple[Run, Run]:
    """Runs the workload in both arms, SLICE_SECONDS of one after SLICE_SECONDS of the other: what the machine does
    meanwhile meets both alike."""
    runs = tuple(arm.start(workload) for arm in arms)
    while not all(run.done for run in runs):
        for run in runs:
            until = run.seconds + SLICE_SECONDS
            while run.seconds < until and not run.done:
                run.step()
    return runs[0].result(), runs[1].result()


class Arm:
    """See the module. `wrap` stands between core and executor (the check that a planted slowdown is found)."""

    def __init__(self, name: str, config: EngineConfig, wrap: Wrap | None = None) -> None:
        self.name = name
        config = replace(config, model=locate_model(config.model))
        self._local = build_executor(config, lambda what, fraction: None)
        self.config = self._local.config
        self.info = self._local.info
        self.report = self._local.report
        self.sizes = model_sizes(self.config.model.path)
        tier = open_tier(self.config.kv, self.info, self._local.pages)
        self._core = EngineCore(self.config, wrap(self._local) if wrap else self._local, tier=tier)
        self._ids = 0
        self._runs = 0

    @property
    def forward(self) -> object:
        """The executor's forward pass, for times by op."""
        return self._local.forward

    def stats(self) -> EngineStats:
        """The engine's counters."""
        return self._core.stats()

    def run(self, workload: Workload) -> Run:
        """All requests at once, to their end."""
        current = self.start(workload)
        while not current.done:
            current.step()
        return current.result()

    def start(self, workload: Workload) -> Current:
        """A run that advances by steps; one at a time."""
        self._runs += 1
        requests = [self._request(workload, item, index) for index, item in enumerate(workload.items)]
        return Current(self.name, self._core, requests)

    def _request(self, workload: Workload, item: Item, index: int) -> NewRequest:
        self._ids += 1
        return NewRequest(
            request_id=self._ids,
            prompt=list(item.prompt),
            params=SamplingParams(
                max_tokens=item.max_tokens, temperature=workload.temperature, ignore_eos=workload.ignore_eos
            ),
            seed=workload.seed + index,
            cache_salt=f"run {self._runs}",
        )

    def close(self) -> None:
        self._core.close()
        self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
