"""What a workload predicts of itself: the time of a schedule, from the measured cost of a step with m rows.

The prediction knows nothing of the engine but that cost, so a measured ratio beside it says how much of a technique's
effect the engine realises (Orca's continuous batching: a static batch runs as long as its longest answer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.bench.workload import Workload, constant, random_workload

if TYPE_CHECKING:
    from octavo.bench.arm import Arm

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
