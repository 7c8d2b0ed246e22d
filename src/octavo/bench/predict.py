"""What a workload predicts of itself: the time of a schedule, from the measured cost of steps.

The prediction knows nothing of the engine but that cost, so a measured ratio beside it says how much of a technique's
effect the engine realises: continuous batching (Orca's: a static batch runs as long as its longest answer), and chunked
prefill (a stream waits for a step with a chunk in it, instead of one with a whole prompt).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.bench.workload import Workload, constant, random_workload

if TYPE_CHECKING:
    from octavo.bench.arm import Arm

Prediction = Callable[[tuple["Arm", "Arm"], Workload], Callable[[Workload], float]]
"""(arms, work of their kind) -> what measures the steps once, and then says the ratio that a piece of work predicts."""

_REPEATS = 3
_STEPS = 24
_CONTEXT = 16


@dataclass(frozen=True)
class StepCost:
    """Seconds of a decode step by its number of rows; between measured points, linear."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, rows: int) -> float:
        return float(np.interp(rows, self.rows, self.seconds))

    @staticmethod
    def measure(arm: Arm) -> StepCost:
        """Medians over a few runs of equal answers."""
        most = arm.config.scheduler.max_num_seqs
        points = sorted({1, 2, 4, 8, 16, 32, 64, 128, most} & set(range(1, most + 1)))
        seconds = []
        for rows in points:
            work = random_workload(rows, _CONTEXT, constant(_STEPS), arm.info.num_tokens, rows)
            runs = [arm.run(work) for _ in range(_REPEATS)]
            seconds.append(float(np.median([(max(r.last) - max(r.first)) / (_STEPS - 1) for r in runs])))
        return StepCost(tuple(points), tuple(seconds))


def schedule_seconds(lengths: Sequence[int], rows: int, cost: StepCost, static: bool) -> float:
    """Time to decode answers of these lengths, `rows` at once; finished rows leave the step in both policies."""
    waiting = list(reversed(lengths))
    running: list[int] = []
    total = 0.0
    while waiting or running:
        if not static or not running:
            while waiting and len(running) < rows:
                running.append(waiting.pop())
        # Nothing joins or leaves before the shortest answer ends.
        steps = min(running)
        total += steps * cost(len(running))
        running = [left - steps for left in running if left > steps]
    return total


def batching_ratio(cost: StepCost, work: Workload, rows: int) -> float:
    """Throughput of continuous over static batching; prompts cost both the same and are counted as steps."""
    lengths = [item.max_tokens for item in work.items]
    prompts = work.prompt_tokens / rows / _CONTEXT * cost(rows)
    static = schedule_seconds(lengths, rows, cost, static=True) + prompts
    continuous = schedule_seconds(lengths, rows, cost, static=False) + prompts
    return static / continuous


def by_batching(arms: tuple[Arm, Arm], work: Workload) -> Callable[[Workload], float]:
    """Of continuous (B) over static batching (A)."""
    rows = arms[1].config.scheduler.max_num_seqs
    cost = StepCost.measure(arms[1])
    return lambda one: batching_ratio(cost, one, rows)


def by_chunks(arms: tuple[Arm, Arm], work: Workload) -> Callable[[Workload], float]:
    """Of the gap beside a prompt in chunks (B) over that beside a whole one (A): seconds of a step with either."""
    longest = max(len(item.prompt) for item in work.items)
    seconds = []
    for arm in arms:
        alone = random_workload(1, longest, constant(1), arm.info.num_tokens, longest)
        runs = [arm.run(alone) for _ in range(_REPEATS)]
        seconds.append(float(np.median([run.first[0] / run.steps for run in runs])))
    return lambda one: seconds[1] / seconds[0]
