"""Where a step's time goes: native time by op, host time by part, for one batch size and context.

The native program times its own ops; the host's parts are the wall time of `plan`, `submit` less the native call,
and `retire`, taken around the engine's own methods. The sum is compared with the whole step, and the rest is named.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from octavo.bench.arm import Arm
from octavo.bench.machine import Watch, as_json, header, noise
from octavo.bench.offline import limits_of
from octavo.bench.stats import Spread, spread
from octavo.bench.workload import constant, random_workload
from octavo.types import Executor, ModelInfo, StepHandle, StepPlan


@dataclass(frozen=True)
class StepReport:
    """Median milliseconds a step."""

    batch: int
    context: int
    steps: int
    total: float
    native: dict[str, float]
    """By kind of op."""
    host: dict[str, float]
    """By part."""
    spread: Spread
    """Milliseconds of the whole step."""
    others: float
    """Share of the CPUs that other processes took meanwhile."""
    seed: int
    lines: tuple[str, ...]
    machine: dict[str, Any]

    def text(self) -> list[str]:
        what = f"{self.batch} rows at {self.context} tokens of context"
        quartiles = f"quartiles {self.spread.low:.3f} to {self.spread.high:.3f}"
        lines = [
            *self.lines,
            f"{what}: {self.total:.3f} ms a step (median of {self.steps}, {quartiles}), seed {self.seed}",
        ]
        for title, parts in (("native", self.native), ("host", self.host)):
            for name, value in sorted(parts.items(), key=lambda item: -item[1]):
                lines.append(f"  {title:7s}{name:24s} {value:8.3f} ms {value / self.total:6.1%}")
        return [*lines, *noise(self.others, self.spread)]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Meter:
    """Stands between core and executor, and notes how long each step's submission took."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.info: ModelInfo = inner.info
        self.num_blocks = inner.num_blocks
        self.submits: list[tuple[int, float, float]] = []
        """(rows, moment it began, seconds) of each step."""
        self.native: list[dict[str, float]] = []
        self.program: Any = None

    def submit(self, plan: StepPlan) -> StepHandle:
        began = time.perf_counter()
        handle = self._inner.submit(plan)
        self.submits.append((sum(work.count for work in plan.work), began, time.perf_counter() - began))
        if self.program is not None:
            times: dict[str, float] = defaultdict(float)
            for name, seconds in zip(self.program.op_names, self.program.op_seconds(), strict=True):
                times[name] += seconds
            self.native.append(dict(times))
        return handle

    def close(self) -> None:
        self._inner.close()


def measure_step(arm: Arm, meter: Meter, batch: int, context: int, steps: int, seed: int) -> StepReport:
    """`arm` was made with `meter` as its wrapper. Decode steps alone are counted."""
    program = getattr(arm.forward, "program", None)
    if program is not None:
        program.set_timing(True)
    meter.program = program
    work = random_workload(batch, max(1, context - steps // 2), constant(steps + 1), arm.info.num_tokens, seed)
    arm.run(work)
    meter.submits.clear()
    meter.native.clear()
    with Watch() as watch:
        arm.run(work)
    if program is not None:
        program.set_timing(False)
    meter.program = None
    chosen = [
        i for i, (rows, _, _) in enumerate(meter.submits[:-1]) if rows == batch and meter.submits[i + 1][0] == batch
    ]
    chosen = chosen[1:] or chosen
    starts = np.array([meter.submits[i][1] for i in chosen])
    nexts = np.array([meter.submits[i + 1][1] for i in chosen])
    submits = np.array([meter.submits[i][2] for i in chosen])
    total = float(np.median(nexts - starts)) * 1e3
    native = {name: float(np.median([meter.native[i].get(name, 0.0) for i in chosen])) * 1e3 for name in _names(meter)}
    inside = sum(native.values())
    host = {
        "plan, retire, deltas": float(np.median(nexts - starts - submits)) * 1e3,
        "inputs, results, call": max(0.0, float(np.median(submits)) * 1e3 - inside),
    }
    limits = limits_of(arm)
    return StepReport(
        batch=batch,
        context=context,
        steps=len(chosen),
        total=total,
        native=native,
        host=host,
        spread=spread([float(value) * 1e3 for value in nexts - starts]),
        others=watch.share,
        seed=seed,
        lines=tuple(header(arm.config.execution.isa or "-", arm.config.execution.threads or 1, limits)),
        machine=as_json(limits),
    )


def _names(meter: Meter) -> list[str]:
    return sorted({name for times in meter.native for name in times})


def metered(make: Callable[[Callable[[Executor], Executor]], Arm]) -> tuple[Arm, Meter]:
    """An arm with a meter in it."""
    meters: list[Meter] = []

    def wrap(inner: Executor) -> Executor:
        meters.append(Meter(inner))
        return meters[0]

    arm = make(wrap)
    return arm, meters[0]
