"""One whole measurement: limits of the machine, the comparison, and its report in lines and plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo import _native
from octavo.bench.machine import measure_limits
from octavo.bench.peers.compare import compare
from octavo.bench.peers.plan import Plan, Source
from octavo.bench.peers.report import Setting, json_of, ratios_of, rows_of, text_of
from octavo.models.digest import file_digest
from octavo.models.store import cache_dir


def run_comparison(
    plan: Plan, source: Source, rounds: int, seed: int, quick: bool, say: Callable[[str], None]
) -> tuple[list[str], dict[str, Any]]:
    """The report for a person, and the result for a file."""
    isa = _native.isas()[0]
    limits = measure_limits(isa, plan.room.threads, source.path.stat().st_size)
    found = compare(plan.contenders, plan.works, rounds, seed, source.vocab, say)
    setting = Setting(isa, plan.room.threads, limits, source.path, file_digest(source.path, cache_dir()), quick)
    rows = rows_of(found)
    ratios = ratios_of(found, rows)
    lines = text_of(found, rows, ratios, [*setting.lines, *[f"problem    {line}" for line in plan.problems]])
    return lines, {**json_of(found, rows, ratios, setting), "problems": list(plan.problems)}
