"""One whole measurement: limits of the machine, the comparison, and its report in lines and plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo import _native
from octavo.bench.machine import as_json, header, measure_limits
from octavo.bench.peers.compare import compare
from octavo.bench.peers.environments import PEERS, Say, find
from octavo.bench.peers.forms import Form, FormError, prepare
from octavo.bench.peers.own import Own, measure_own
from octavo.bench.peers.plan import Plan, Source
from octavo.bench.peers.report import Setting, json_of, ratios_of, rows_of, text_of
from octavo.models.digest import file_digest
from octavo.models.store import cache_dir


def run_own(source: Source, forms: Sequence[Form], threads: int, seed: int, tell: Say, say: Say) -> Own:
    """Our figures of other engines beside those of their own benchmarks; engines that are not set up are told."""
    isa = _native.isas()[0]
    limits = measure_limits(isa, threads, source.path.stat().st_size)
    environments = {peer: found for peer in PEERS if (found := find(peer)) is not None}
    lines = header(isa, threads, limits)
    ready = []
    for form in forms:
        if form.peer not in environments:
            problem = f"{form.peer} is not set up; octavo bench peers --setup {form.peer} would do it"
        else:
            try:
                path = prepare(form, source.path, environments, tell)
                ready.append((form.peer, source.kind if form.name == "file" else form.name, path))
                continue
            except FormError as error:
                problem = f"{form.peer}: {error}"
        if f"problem    {problem}" not in lines:
            lines.append(f"problem    {problem}")
    agreements, others = measure_own(ready, environments, source.vocab, threads, seed, say)
    return Own(agreements, others, seed, tuple(lines), as_json(limits))


def run_comparison(
    plan: Plan, source: Source, rounds: int, seed: int, quick: bool, say: Callable[[str], None]
) -> tuple[list[str], dict[str, Any]]:
    """The report for a person, and the result for a file."""
    isa = _native.isas()[0]
    limits = measure_limits(isa, plan.room.threads, source.path.stat().st_size)
    found = compare(plan.contenders, plan.works, rounds, seed, source.vocab, say, lean=quick)
    setting = Setting(isa, plan.room.threads, limits, source.path, file_digest(source.path, cache_dir()), quick)
    rows = rows_of(found)
    ratios = ratios_of(found, rows)
    lines = text_of(found, rows, ratios, [*setting.lines, *[f"problem    {line}" for line in plan.problems]])
    return lines, {**json_of(found, rows, ratios, setting), "problems": list(plan.problems)}
