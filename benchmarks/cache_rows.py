"""The rows of the cache: what it costs without hits, what hits save, and what paging wastes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.instant import Instant
from octavo.bench.ablate import PAIRS, Pair, measure
from octavo.bench.arm import Arm
from octavo.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.execution.factory import build_executor
from octavo.models.locate import locate_model
from octavo.types import Executor, NewRequest, SamplingParams, StepHandle, StepPlan

POOL = 32768


def _config(prefix_cache: bool) -> EngineConfig:
    return EngineConfig(model=locate_model(ModelConfig()), kv=KVConfig(size_tokens=POOL, prefix_cache=prefix_cache))


# --- without hits ------------------------------------------------------------------------------------


class Clock:
    """Time spent inside wrapped calls, the outermost of nested ones alone."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def wrap(self, owner: Any, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return inner(*arguments, **named)
            self._inside = True
            began = time.perf_counter()
            try:
                return inner(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began
                self._inside = False

        setattr(owner, name, timed)


def prefix_no_hit(short: bool) -> dict[str, Any]:
    """The share of a step that the cache's own code takes, and runs with and without it in turns."""
    pair = PAIRS["prefix-cache-miss"]()
    seed = random.SystemRandom().getrandbits(40)
    finding = None
    with Arm("on", pair.b(_config(True))) as on:
        if not short:
            with Arm("off", pair.a(_config(False))) as off:
                finding = measure(pair, (off, on), 30, seed)
        share = _own_share(on, pair, seed + 1, 1 if short else 8)
    details: dict[str, Any] = {"share": share}
    figure, met = f"{share:.4%} of the time in its code", share < 0.01
    if finding is not None:
        ratio = finding.ratio
        met = met and ratio.high >= 0.99 and finding.sound
        figure += f"; {finding.unit}, on / off: {ratio.text()}"
        details |= {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "pairs": ratio.pairs}
    return {
        "bar": "under 1 % in its own code; 30 pairs do not show a cost above 1 %",
        "figure": figure,
        "met": met,
        "details": details,
    }


def _own_share(arm: Arm, pair: Pair, seed: int, runs: int) -> float:
    """Looking up, publishing, giving back and evicting, as a share of whole runs."""
    clock = Clock()
    kv = arm._core.kv
    for name in ("_match", "commit"):
        clock.wrap(kv, name)
    for group in kv.groups:
        for name in ("released", "evict"):
            clock.wrap(group.cache, name)
    began = time.perf_counter()
    for number in range(runs):
        arm.run(pair.make(arm.info.num_tokens, seed + number))
    return clock.seconds / (time.perf_counter() - began)


# --- hits --------------------------------------------------------------------------------------------


class Counting:
    """An executor that counts the rows it is given."""

    def __init__(self, inner: Executor) -> None:
        self.info = inner.info
        self.num_blocks = inner.num_blocks
        self.rows = 0
        self._inner = inner

    def submit(self, plan: StepPlan) -> StepHandle:
        self.rows += sum(work.count for work in plan.work)
        return self._inner.submit(plan)

    def close(self) -> None:
        self._inner.close()


@dataclass
class Served:
    """What one engine did with a row of prompts."""

    first: list[float]
    """Seconds to the first token, of the prompts that were measured."""
    rows: int
    hits: int
    share: float
    """Of the measured prompts' tokens, hits."""
    outputs: list[list[int]]


class Engine:
    """One prompt after another."""

    def __init__(self, prefix_cache: bool) -> None:
        loaded = build_executor(_config(prefix_cache), lambda what, fraction: None)
        self.executor = Counting(loaded)
        self.core = EngineCore(loaded.config, self.executor)
        self._ids = 0

    def ask(self, prompt: Sequence[int], tokens: int, salt: str) -> tuple[float, list[int], int]:
        """Seconds to the first token, the answer, and its cached tokens."""
        self._ids += 1
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        began = time.perf_counter()
        self.core.handle(NewRequest(request_id=self._ids, prompt=list(prompt), params=params, seed=0, cache_salt=salt))
        first, answer, cached = 0.0, [], 0
        while self.core.has_work:
            output = self.core.step()
            for delta in output.deltas if output is not None else ():
                assert delta.error is None, delta.error
                first = first or time.perf_counter() - began
                answer += delta.tokens
                cached += delta.cached_tokens or 0
        return first, answer, cached


Prompts = Callable[[Engine, str, random.Random, bool], Iterator[tuple[list[int], int, bool]]]


def shared_system(engine: Engine, salt: str, rng: random.Random, short: bool) -> Iterator[Any]:
    """8 users on one system prompt of 1 024 tokens; the first one computes it."""
    system = _ids(rng, 256 if short else 1024)
    for user in range(3 if short else 9):
        yield system + _ids(rng, 64), 4, user > 0


def multi_turn(engine: Engine, salt: str, rng: random.Random, short: bool) -> Iterator[Any]:
    """Users who take turns, each with all that was said before."""
    said = [_ids(rng, 128) for _ in range(2 if short else 4)]
    for turn in range(2 if short else 5):
        for user, text in enumerate(said):
            answer = yield text, 16, turn > 0
            said[user] = [*text, *answer, *_ids(rng, 96)]


def _ids(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(100, 40_000), k=count)


def serve(engine: Engine, make: Any, seed: int, short: bool) -> Served:
    """The whole work once."""
    salt = f"{seed}"
    rows, hits = engine.executor.rows, engine.core.stats().cached_prompt_tokens
    served = Served([], 0, 0, 0.0, [])
    prompts = make(engine, salt, random.Random(seed), short)
    answer: list[int] | None = None
    tokens = cached_tokens = 0
    while True:
        try:
            prompt, count, measured = prompts.send(answer)
        except StopIteration:
            break
        first, answer, cached = engine.ask(prompt, count, salt)
        served.outputs.append(answer)
        if measured:
            served.first.append(first)
            tokens += len(prompt)
            cached_tokens += cached
    served.rows = engine.executor.rows - rows
    served.hits = engine.core.stats().cached_prompt_tokens - hits
    served.share = cached_tokens / tokens
    return served


@contextmanager
def engines() -> Iterator[tuple[Engine, Engine]]:
    """Without and with the cache."""
    made = (Engine(False), Engine(True))
    try:
        yield made
    finally:
        for engine in made:
            engine.executor.close()


def prefix_hits(short: bool) -> dict[str, Any]:
    """Rows and times to the first token, without and with the cache, in turns."""
    figures, details, met = [], {}, True
    with engines() as (off, on):
        for name, make in (("system prompt", shared_system), ("multi-turn", multi_turn)):
            ratios, shares = [], []
            for seed in range(1 if short else 4):
                cold, warm = serve(off, make, seed, short), serve(on, make, seed, short)
                assert cold.outputs == warm.outputs, "answers differ"
                assert cold.rows - warm.rows == warm.hits > 0 and cold.hits == 0, "rows fall by exactly the hits"
                if seed or short:
                    ratios.append(sum(cold.first) / sum(warm.first))
                    shares.append(warm.share)
            ratio, share = median(ratios), median(shares)
            bound = 0.8 / (1 - share)
            met = met and (short or ratio >= bound)
            figures.append(f"{name}: {share:.1%} hits, TTFT {ratio:.2f} times less (bar {bound:.2f})")
            details[name] = {"ratios": ratios, "share": share, "bound": bound}
    return {
        "bar": "rows fall by exactly the hits, answers equal; TTFT ratio at least 0.8 / (1 - h)",
        "figure": "; ".join(figures),
        "met": met,
        "details": details,
    }


# --- waste -------------------------------------------------------------------------------------------


@dataclass
class Held:
    """Averages over the steps in which the pool was full."""

    running: float
    length: float
    waste: float


def _held(paged: bool, pool: int, longest: int, requests: int, seed: int) -> Held:
    config = EngineConfig(
        model=ModelConfig(max_model_len=longest),
        kv=KVConfig(size_tokens=pool, paged=paged, prefix_cache=False),
        scheduler=SchedulerConfig(max_num_seqs=1024, max_num_batched_tokens=8192),
    )
    size = config.kv.block_size if paged else longest
    core = EngineCore(replace(config, kv=replace(config.kv, block_size=size)), Instant(pool // size))
    rng = random.Random(seed)
    for number in range(requests):
        params = SamplingParams(max_tokens=rng.randrange(100, 301), ignore_eos=True, temperature=0.0)
        prompt = [7 + number % 100] * rng.randrange(150, 451)
        core.handle(NewRequest(request_id=number, prompt=prompt, params=params, seed=0))
    group = core.kv.groups[0]
    running = tokens = blocks = steps = 0
    while core.stats().waiting:
        core.step()
        # The first requests fill the pool together; what counts is the time after they have spread.
        if core.stats().generated_tokens > requests * 40:
            steps += 1
            running += len(core.scheduler.running)
            tokens += sum(request.num_computed for request in core.scheduler.running)
            blocks += group.pool.used
    assert steps, "the pool was never full"
    return Held(running / steps, tokens / running, 1 - tokens / (blocks * size))


def paged_waste(short: bool) -> dict[str, Any]:
    """Blocks of 32 tokens against a block of the longest request, the same pool."""
    pool, longest = (32768, 1024) if short else (65536, 2048)
    requests = 500 if short else 2000
    seed = random.SystemRandom().getrandbits(30)
    paged, reserved = (_held(way, pool, longest, requests, seed) for way in (True, False))
    half = 16
    formula = half / (paged.length + half)
    expected = reserved.running * longest / (paged.length + half)
    met = paged.waste < 0.04 and abs(paged.running / expected - 1) <= 0.1
    return {
        "bar": "waste under 4 %; requests at once within 10 % of reserved / (mean + half a block)",
        "figure": f"waste {paged.waste:.2%} (formula {formula:.2%}) at mean length {paged.length:.0f}, reserved "
        f"{reserved.waste:.1%}; {paged.running:.1f} requests at once, formula {expected:.1f}, reserved "
        f"{reserved.running:.1f}",
        "met": met,
        "details": {
            "waste": paged.waste,
            "formula": formula,
            "mean_length": paged.length,
            "running": paged.running,
            "expected": expected,
            "reserved_running": reserved.running,
            "reserved_waste": reserved.waste,
            "seed": seed,
        },
    }
