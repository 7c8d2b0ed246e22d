"""Throughput of the engine without a server: prefill and decode by batch size, repeats interleaved, shares of limits.

For every batch size the same number of runs, in rounds (1, 8, 32, 1, 8, 32, ..), so that drift spreads over all. A
decode step reads all weights once and each row's keys and values: its share of the bandwidth limit is that many bytes
over the measured time and rate; its share of the multiply-add limit counts two operations a weight and row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.arm import Arm
from octavo.bench.machine import NOISY, Limits, Watch, as_json, header, measure_limits, noise
from octavo.bench.stats import Spread, spread
from octavo.bench.workload import constant, random_workload


@dataclass(frozen=True)
class Row:
    """One batch size."""

    batch: int
    decode: Spread
    """Output tokens a second."""
    prefill: Spread
    """Prompt tokens a second, to the last request's first token."""
    step_ms: float
    bandwidth_share: float | None
    flops_share: float | None

    @property
    def steady(self) -> bool:
        return self.decode.relative <= NOISY


@dataclass(frozen=True)
class Offline:
    """A whole report."""

    prompt: int
    output: int
    rows: tuple[Row, ...]
    others: float
    seed: int
    lines: tuple[str, ...]
    machine: dict[str, Any]

    def text(self) -> list[str]:
        lines = [
            *self.lines,
            f"work       {self.prompt} prompt and {self.output} output tokens, greedy, prefix cache cold",
        ]
        lines.append("batch   decode tok/s (quartiles)      step ms   of bandwidth  of multiply-adds  prefill tok/s")
        for row in self.rows:
            shares = ["-" if share is None else f"{share:.0%}" for share in (row.bandwidth_share, row.flops_share)]
            quartiles = f"{row.decode.median:8.1f} ({row.decode.low:.1f} to {row.decode.high:.1f})"
            note = "" if row.steady else "   too noisy to be a result"
            lines.append(
                f"{row.batch:5d}  {quartiles:30s} {row.step_ms:8.2f} {shares[0]:>13s} {shares[1]:>17s} "
                f"{row.prefill.median:14.0f}{note}"
            )
        return [*lines, f"seed       {self.seed}", *noise(self.others, None)]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_offline(
    arm: Arm,
    batches: Sequence[int],
    prompt: int,
    output: int,
    repeats: int,
    seed: int,
    progress: Callable[[str], None] = lambda what: None,
) -> Offline:
    """Runs every batch size `repeats` times after one warm-up each; output is at least 2."""
    vocab = arm.info.num_tokens
    decode: dict[int, list[float]] = {batch: [] for batch in batches}
    prefill: dict[int, list[float]] = {batch: [] for batch in batches}
    with Watch() as watch:
        for repeat in range(-1, repeats):
            for batch in batches:
                work = random_workload(batch, prompt, constant(output), vocab, seed + 1000 * repeat + batch)
                run = arm.run(work)
                progress(f"batch {batch}, run {repeat + 1} of {repeats}")
                if repeat >= 0:
                    decode[batch].append(run.decode_rate)
                    prefill[batch].append(work.prompt_tokens / max(run.first))
    limits = limits_of(arm)
    rows = [
        _row(arm, batch, prompt + output // 2, spread(decode[batch]), spread(prefill[batch]), limits)
        for batch in batches
    ]
    execution = arm.config.execution
    lines = header(execution.isa or "-", execution.threads or 1, limits)
    return Offline(prompt, output, tuple(rows), watch.share, seed, tuple(lines), as_json(limits))


def limits_of(arm: Arm) -> Limits | None:
    """Measured over a buffer of the size of the weights; None on a back end that is not ours to compare."""
    execution = arm.config.execution
    if execution.backend != "cpu":
        return None
    assert execution.isa is not None and execution.threads is not None
    return measure_limits(execution.isa, execution.threads, arm.info.weights_bytes)


def _row(arm: Arm, batch: int, context: int, decode: Spread, prefill: Spread, limits: Limits | None) -> Row:
    seconds = batch / decode.median if decode.median else 0.0
    if limits is None or not seconds:
        return Row(batch, decode, prefill, seconds * 1e3, None, None)
    kv = sum(group.bytes_per_token * min(context, group.window or context) for group in arm.info.kv_groups)
    moved = arm.info.weights_bytes + batch * kv
    operations = 2.0 * arm.sizes.product_weights * batch
    return Row(
        batch,
        decode,
        prefill,
        seconds * 1e3,
        moved / seconds / (limits.read_gbs * 1e9),
        operations / seconds / (limits.gflops * 1e9),
    )
