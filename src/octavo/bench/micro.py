"""Each op alone: time, GB/s, GFLOP/s, and the share of the limit measured in the same run.

Ops run on the recorded program of a real model, one call an op, in batches as a step would bring them; what an op reads
is counted from the model's sizes. An op is limited by reading or by multiply-adds: the share is of the nearer limit.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.arm import Arm
from octavo.bench.machine import Limits, as_json, header, noise
from octavo.bench.offline import limits_of
from octavo.bench.step import Meter, measure_step


@dataclass(frozen=True)
class OpRow:
    """One kind of op in a step of so many rows."""

    name: str
    rows: int
    milliseconds: float
    """All of its calls in one step together."""
    gbs: float | None
    gflops: float | None
    share: float | None
    """Of the nearer limit."""
    limit: str
    """ "reading" or "multiply-adds"."""


@dataclass(frozen=True)
class Micro:
    """A whole report."""

    context: int
    rows: tuple[OpRow, ...]
    lines: tuple[str, ...]
    others: float
    """Share of the CPUs that other processes took meanwhile."""
    seed: int
    machine: dict[str, Any]

    def text(self) -> list[str]:
        lines = [*self.lines, f"ops of one decode step at {self.context} tokens of context, all layers together"]
        lines.append("rows  op                         ms      GB/s   GFLOP/s   of the nearer limit")
        for row in self.rows:
            gbs, gflops = ("-" if x is None else f"{x:.1f}" for x in (row.gbs, row.gflops))
            share = "-" if row.share is None else f"{row.share:.0%} {row.limit}"
            lines.append(f"{row.rows:4d}  {row.name:22s} {row.milliseconds:7.3f} {gbs:>9s} {gflops:>9s}   {share}")
        return [*lines, f"seed       {self.seed}", *noise(self.others, None)]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_micro(arm: Arm, meter: Meter, batches: list[int], context: int, steps: int, seed: int) -> Micro:
    """`arm` was made with `meter` as its wrapper (step.metered)."""
    limits = limits_of(arm)
    rows = []
    others = 0.0
    for batch in batches:
        report = measure_step(arm, meter, batch, context, steps, seed)
        others = max(others, report.others)
        for name, milliseconds in sorted(report.native.items(), key=lambda item: -item[1]):
            rows.append(_row(arm, name, batch, context, milliseconds, limits))
    execution = arm.config.execution
    lines = header(execution.isa or "-", execution.threads or 1, limits)
    return Micro(context, tuple(rows), tuple(lines), others, seed, as_json(limits))


def _row(arm: Arm, name: str, batch: int, context: int, milliseconds: float, limits: Limits | None) -> OpRow:
    moved, operations = _work(arm, batch, context).get(name, (None, None))
    seconds = milliseconds / 1e3
    if moved is None or operations is None or limits is None or not seconds:
        return OpRow(name, batch, milliseconds, None, None, None, "")
    gbs, gflops = moved / seconds / 1e9, operations / seconds / 1e9
    by_reading, by_adds = gbs / limits.read_gbs, gflops / limits.gflops
    limit = "reading" if by_reading >= by_adds else "multiply-adds"
    return OpRow(name, batch, milliseconds, gbs, gflops, max(by_reading, by_adds), limit)


def _work(arm: Arm, batch: int, context: int) -> dict[str, tuple[float, float]]:
    """Bytes read and operations done by the ops whose work the model's sizes give."""
    info = arm.info
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    found["linear"] = (float(info.weights_bytes), 2.0 * arm.sizes.product_weights * batch)
    cells = sum(group.bytes_per_token * min(context, group.window or context) for group in info.kv_groups)
    found["attention"] = (float(batch * cells), float(batch * arm.sizes.attention_operations * context))
    return dict(found)
