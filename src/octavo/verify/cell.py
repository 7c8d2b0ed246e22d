"""One cell of the matrix: the requests under one condition, on an executor that is loaded already.

A cell has an engine core of its own, so nothing is carried over but what the condition asks for: a prefix cache that
was filled by the same prompts, or their blocks on disk. Where the condition was not reached (nobody was preempted, the
disk was not worth reading), the cell says so and counts as not run.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.execution.executor import LocalExecutor
from octavo.kvcache.tiers.disk import open_tier
from octavo.kvcache.tiers.store import RATES
from octavo.types import FinishReason, ModelInfo, NewRequest, SamplingParams, StepHandle, StepPlan
from octavo.verify.work import NOISE, Answer, Asked, Difference, draw_noise, first_difference

CHUNK = 61
"""Tokens a step where prompts come in chunks: no multiple of anything."""
DISK_BYTES = 1 << 30
_NOISE = 1000
_WARM = 2000
_GROWING = 3000
_OLDER = 8
_PRESSURES = (0, 1, 2, 3, -1, 4, -2, 6, 0, 1, 2, 3)
"""Blocks more, tried in turn until the condition is reached: who is preempted and what stays cached is the noise's."""

Answers = dict[tuple[str, int], Answer]


@dataclass(frozen=True)
class Condition:
    """What surrounds the requests of a cell."""

    noisy: bool = False
    chunks: bool = False
    cache: str = "cold"
    """"cold", "hit" or "disk"."""
    preempted: bool = False
    choices: bool = True
    """All choices of each request together; else one at a time."""

    def text(self) -> str:
        parts = (
            "noisy" if self.noisy else "alone",
            "chunks" if self.chunks else "whole",
            self.cache,
            "preempted" if self.preempted else "undisturbed",
            "n" if self.choices else "n=1",
        )
        return " ".join(f"{part:<11s}" for part in parts)


class Fewer:
    """An executor of which the core is told a part of the blocks: memory pressure."""

    def __init__(self, inner: LocalExecutor, blocks: int) -> None:
        self._inner = inner
        self.info: ModelInfo = inner.info
        self.num_blocks = tuple(min(blocks, own) for own in inner.num_blocks)

    def submit(self, plan: StepPlan) -> StepHandle:
        return self._inner.submit(plan)

    def close(self) -> None:
        return None


@dataclass
class Outcome:
    """What a cell gave: answers to compare, or why the condition was not reached."""

    answers: Answers
    missed: str | None = None


def compare(expected: Answers, got: Answers) -> Difference | None:
    """The first difference of the first request that differs."""
    for (name, choice), answer in got.items():
        found = first_difference(name, choice, expected[name, choice], answer)
        if found is not None:
            return found
    return None


def alone(executor: LocalExecutor, asked: Iterable[Asked]) -> Answers:
    """Every choice of every request by itself in a core of its own: what all cells must equal."""
    answers: Answers = {}
    for one in asked:
        for choice in range(one.choices):
            with _core(executor, executor.config) as core:
                answers[one.name, choice] = _drive(core, [], [(one, choice)])[0][one.name, choice]
    return answers


def run_cell(executor: LocalExecutor, asked: list[Asked], condition: Condition, rng: random.Random) -> Outcome:
    """The requests under the condition."""
    if condition.cache == "disk" and any(group.window is not None for group in executor.info.kv_groups):
        return Outcome({}, "layers with windows are not kept on disk")
    config = _configured(executor.config, condition)
    with tempfile.TemporaryDirectory(prefix="octavo-verify-") as directory:
        if condition.cache == "disk":
            kv = replace(config.kv, disk=directory, disk_bytes=DISK_BYTES)
            config = replace(config, kv=kv)
            with _core(executor, config) as core:
                _warm(core, asked)
            # Learnt speeds would say that a small model is computed sooner than read.
            (Path(directory) / RATES).unlink(missing_ok=True)
        if not condition.preempted:
            with _core(executor, config) as core:
                return _in_core(core, executor.info, asked, condition, rng)
        blocks = _pressed(executor, asked, condition)
        for more in _PRESSURES:
            with _core(executor, config, blocks + more) as core:
                outcome = _in_core(core, executor.info, asked, condition, rng)
            if outcome.missed is None:
                break
        return outcome


def _in_core(
    core: EngineCore, info: ModelInfo, asked: list[Asked], condition: Condition, rng: random.Random
) -> Outcome:
    if condition.cache == "hit":
        _warm(core, asked)
    wanted = [(one, choice) for one in asked for choice in range(one.choices if condition.choices else 1)]
    # Where memory is short, each takes one block: less than what the older requests come to need.
    longest = core.kv.block_size // 2 if condition.preempted else max(len(one.prompt) for one in asked)
    answers: Answers = {}
    preempted = 0
    before = core.stats()
    for number, group in enumerate([wanted] if condition.noisy or condition.preempted else _apart(asked, wanted)):
        others: list[NewRequest] = []
        if condition.noisy:
            others += draw_noise(info.num_tokens, longest, rng, _NOISE + 10 * number)
        if condition.preempted:
            others = [*_growing(core, asked), *others]
        got, times = _drive(core, others, group)
        answers |= got
        preempted += times
    after = core.stats()
    if condition.cache == "hit" and after.cached_prompt_tokens == before.cached_prompt_tokens:
        return Outcome(answers, "no prompt fills a block")
    if condition.cache == "disk" and after.disk_tokens == before.disk_tokens:
        return Outcome(answers, "nothing was read from disk")
    if condition.preempted and not preempted:
        return Outcome(answers, "nobody was preempted")
    return Outcome(answers)


def _apart(asked: list[Asked], wanted: list[tuple[Asked, int]]) -> list[list[tuple[Asked, int]]]:
    """Each request with its choices, one after another."""
    return [[pair for pair in wanted if pair[0] is one] for one in asked]


@contextmanager
def _core(executor: LocalExecutor, config: EngineConfig, blocks: int | None = None) -> Iterator[EngineCore]:
    told = executor if blocks is None else Fewer(executor, blocks)
    core = EngineCore(config, told, tier=open_tier(config.kv, executor.info, executor.pages))
    try:
        yield core
    finally:
        core.close()


def _configured(config: EngineConfig, condition: Condition) -> EngineConfig:
    scheduler = config.scheduler
    if condition.chunks:
        scheduler = replace(scheduler, max_num_batched_tokens=CHUNK)
    # A cold cell with a cache would hit in the second of three choices.
    kv = replace(config.kv, prefix_cache=condition.cache != "cold")
    return replace(config, scheduler=scheduler, kv=kv, validate_kv=True)


def _warm(core: EngineCore, asked: list[Asked]) -> None:
    """Fills the prefix cache with the prompts' blocks."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    for number, one in enumerate(asked):
        core.handle(NewRequest(request_id=_WARM + number, prompt=list(one.prompt), params=params, seed=0))
    _to_end(core)


def _growing(core: EngineCore, asked: list[Asked]) -> list[NewRequest]:
    """Older requests whose answers take the blocks that the pool lacks."""
    size = core.kv.block_size
    params = SamplingParams(max_tokens=2 * size, temperature=0.0, ignore_eos=True)
    prompt = [asked[-1].prompt[0]] * (size - 5)
    return [NewRequest(request_id=_GROWING + i, prompt=[*prompt, i], params=params, seed=0) for i in range(_OLDER)]


def _pressed(executor: LocalExecutor, asked: list[Asked], condition: Condition) -> int:
    """Blocks that hold the longest prompt, and not what the older requests come to need once it was admitted."""
    size = executor.config.kv.block_size
    noise = NOISE if condition.noisy else 0
    return _OLDER + 3 + noise + max(-(-(len(one.prompt) + 1) // size) for one in asked)


def _drive(core: EngineCore, others: list[NewRequest], group: list[tuple[Asked, int]]) -> tuple[Answers, int]:
    """Others first, then the group two steps later; to the end of the group. Returns its preemptions too."""
    names = {number: (one.name, choice) for number, (one, choice) in enumerate(group)}
    answers = {name: Answer([], []) for name in names.values()}
    for request in others:
        core.handle(request)
    for _ in range(2 if others else 0):
        core.step()
    for number, (one, choice) in enumerate(group):
        core.handle(one.request(number, choice))
    states = [state for number in names if (state := core.scheduler.find(number)) is not None]
    open_names = set(names)
    while open_names:
        output = core.step()
        for delta in output.deltas if output else []:
            if delta.finish is FinishReason.ERROR:
                raise RuntimeError(f"a request failed: {delta.error}")
            if delta.request_id in names:
                answer = answers[names[delta.request_id]]
                answer.tokens += delta.tokens
                answer.logprobs += delta.logprobs or []
                if delta.finish is not None:
                    open_names.discard(delta.request_id)
    _to_end(core)
    return answers, sum(state.preemptions for state in states)


def _to_end(core: EngineCore) -> None:
    while core.has_work:
        core.step()
