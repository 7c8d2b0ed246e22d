"""Whether the instruments tell the truth: equal arms, a planted slowdown, and a ratio that arithmetic predicts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from benchmarks.kept import Kept
from octavo.bench.ablate import Finding, Pair, batching_pair, measure
from octavo.bench.arm import Arm
from octavo.bench.workload import constant, random_workload
from octavo.config import EngineConfig, KVConfig, ModelConfig
from octavo.models.store import default_model
from octavo.types import Executor, StepHandle, StepPlan, StepResult

LIMIT_SECONDS = 110.0
SLOWDOWN, SHORT_SLOWDOWN = 0.03, 0.5
"""The short form has few pairs: what it plants is large, and must be found each time."""
_SPIN = 0.0002


class Slowed:
    """An executor whose steps take longer by a share of their time: it sleeps, and spins the last part."""

    def __init__(self, inner: Executor, share: float) -> None:
        self._share = share
        self._inner = inner
        self.info = inner.info
        self.num_blocks = inner.num_blocks

    def submit(self, plan: StepPlan) -> StepHandle:
        began = time.perf_counter()
        result = self._inner.submit(plan).result()
        now = time.perf_counter()
        until = now + self._share * (now - began)
        time.sleep(max(0.0, until - now - _SPIN))
        while time.perf_counter() < until:
            pass
        return _Done(result)

    def close(self) -> None:
        self._inner.close()


class _Done:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


def _config() -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(default_model(lambda what, fraction: None))), kv=KVConfig(size_tokens=8192)
    )


def _question(text: str) -> Pair:
    return Pair(
        text,
        lambda config: config,
        lambda config: config,
        lambda vocab, seed: random_workload(8, 8, constant(12), vocab, seed),
    )


def _many(name: str, short: bool, pair: Pair, wrap: Callable[[Executor], Executor] | None) -> list[dict[str, Any]]:
    runs, pairs = (2, 8) if short else (20, 40)
    kept = Kept(name, short)
    config = _config()
    with Arm("A", config) as a, Arm("B", config, wrap) as b:
        found = kept.upto(runs, lambda: _run(measure(pair, (a, b), pairs, secrets.randbelow(1 << 31), LIMIT_SECONDS)))
    kept.done()
    return found


def _run(found: Finding) -> dict[str, Any]:
    ratio = found.ratio
    return {
        "ratio": [ratio.low, ratio.value, ratio.high],
        "pairs": ratio.pairs,
        "verdict": ratio.verdict,
        "seconds": found.seconds,
        "others": found.others,
        "seed": found.seed,
    }


def null(short: bool) -> dict[str, Any]:
    """One setting against itself, 20 runs of at most 2 minutes."""
    found = _many("bench-null", short, _question("one setting against itself"), None)
    covered = sum(run["ratio"][0] <= 1 <= run["ratio"][2] for run in found)
    return _row("the interval covers 1 in at least 18 of 20 runs", found, covered, 1 if short else 18)


def planted(short: bool) -> dict[str, Any]:
    """A sleep of 3 % of each step in one arm, 20 runs of at most 2 minutes."""
    share = SHORT_SLOWDOWN if short else SLOWDOWN
    question = _question(f"a planted slowdown of {share:.0%}")
    found = _many("bench-planted", short, question, lambda inner: Slowed(inner, share))
    seen = sum(run["verdict"] == "less" for run in found)
    return _row("found, with its sign, in 19 of 20 runs", found, seen, len(found) if short else 19)


def _row(bar: str, found: list[dict[str, Any]], good: int, least: int) -> dict[str, Any]:
    longest = max(run["seconds"] for run in found)
    return {
        "bar": bar,
        "figure": f"{good} of {len(found)}, longest run {longest:.0f} s",
        "met": good >= least and longest <= 120,
        "details": found,
    }


def predicted(short: bool) -> dict[str, Any]:
    """Continuous against static batching beside what the measured cost of a step predicts."""
    figures, met, details = [], True, {}
    for rows in (8,) if short else (8, 32):
        for even in (False, True):
            pair = batching_pair(rows, even=even, batches=2 if short else 4)
            config = _config()
            with Arm("A", pair.a(config)) as a, Arm("B", pair.b(config)) as b:
                found = measure(pair, (a, b), 6 if short else 12, secrets.randbelow(1 << 31))
            details[f"{rows} {'equal' if even else 'exponential'}"] = found.text()
            if even:
                figures.append(f"{rows} rows, equal lengths: {found.ratio.text()}")
                met &= 0.5 < found.ratio.value < 2 if short else found.ratio.low <= 1 <= found.ratio.high
            else:
                figures.append(
                    f"{rows} rows: {found.ratio.value:.2f} measured, {found.predicted:.2f} predicted, {found.share:.2f}"
                )
                met &= found.share >= (0.5 if short else 0.9)
    return {
        "bar": "at least 0.9 of the predicted ratio; 1 within the interval on equal lengths",
        "figure": "; ".join(figures),
        "met": bool(met),
        "details": details,
    }
