"""A run's report: tables for people, JSON for machines, and the comparison of two of them.

A figure is the median over repeats, with the least and the greatest beside it. A run whose client was not up to it is
printed, but says that it is no result.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from octavo.bench.machine import machine_lines
from octavo.bench.serve.metrics import FORMULAS, MERGED, Metrics
from octavo.bench.serve.plan import Plan
from octavo.bench.serve.prompts import Dialect
from octavo.config import ConfigError

KIND = "octavo bench serve"
_TIMES = ("ttft", "itl", "tpot", "e2e")
_COLUMNS = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class Report:
    """All repeats of one plan."""

    url: str
    plan: Plan
    dialect: Dialect
    repeats: tuple[Metrics, ...]
    notes: tuple[str, ...]
    machine: dict[str, Any]
    connections: int
    resent: int

    @property
    def faults(self) -> list[str]:
        """Empty for a result."""
        return [f"repeat {i}: {fault}" for i, one in enumerate(self.repeats, 1) for fault in one.faults()]

    def text(self) -> list[str]:
        lines = [
            *machine_lines(self.machine),
            f"server     {self.url}, model {self.dialect.model}, {self.plan.ask.path}",
            f"work       {self.plan.describe()}; seed {self.plan.seed}",
            f"prompts    {self.dialect.describe()}",
            *(f"           {note}" for note in self.notes),
            *FORMULAS,
            "",
            *self._times(),
            "",
            *self._rates(),
            *self._requests(),
            *self._usage(),
            *self._client(),
        ]
        if self.faults:
            lines += ["", "NOT A RESULT: the client was not up to this load", *(f"  {fault}" for fault in self.faults)]
        return lines

    def _times(self) -> list[str]:
        lines = [f"{'ms':6s}" + "".join(f"{name:>28s}" for name in _COLUMNS)]
        for name in _TIMES:
            cells = [self._cell(lambda one, n=name, c=column: getattr(one, n).get(c)) for column in _COLUMNS]  # type: ignore[misc]
            lines.append(f"{name.upper():6s}" + "".join(f"{cell:>28s}" for cell in cells))
        return lines

    def _cell(self, pick: Callable[[Metrics], float | None]) -> str:
        values = [value for one in self.repeats if (value := pick(one)) is not None]
        if not values:
            return "-"
        if len(values) == 1:
            return f"{values[0]:.2f}"
        return f"{median(values):.2f} ({min(values):.2f}..{max(values):.2f})"

    def _rates(self) -> list[str]:
        lines = [
            f"requests   {self._cell(lambda one: one.request_rate)} a second",
            f"output     {self._cell(lambda one: one.output_rate)} tokens a second; with prompts "
            f"{self._cell(lambda one: one.total_rate)}",
        ]
        if self.plan.levels.given:
            levels = ", ".join(f"{name.upper()} {value:g} ms" for name, value in self.plan.levels.given.items())
            lines.append(
                f"goodput    {self._cell(lambda one: one.goodput)} requests a second "
                f"({self._cell(lambda one: one.good_share and 100 * one.good_share)} % of all due) within {levels}"
            )
        return lines

    def _requests(self) -> list[str]:
        def total(pick: Callable[[Metrics], int | None]) -> int:
            return sum(pick(one) or 0 for one in self.repeats)

        lines = [
            f"answers    {total(lambda one: one.complete)} complete of {total(lambda one: one.due)}; "
            f"{total(lambda one: one.dropped)} dropped, {total(lambda one: one.cut)} cut, "
            f"{total(lambda one: one.failed)} failed"
        ]
        for kind in sorted({kind for one in self.repeats for kind in one.errors}):
            example = next(one.examples[kind] for one in self.repeats if kind in one.examples)
            lines.append(f"           {total(lambda one, k=kind: one.errors.get(k, 0))} x {kind}: {example[:90]}")  # type: ignore[misc]
        if self.plan.deadline_s is not None:
            missed = total(lambda one: one.deadline_misses)
            lines.append(
                f"deadline   {missed} of {total(lambda one: one.due)} not complete in {self.plan.deadline_s:g} s"
            )
        return lines

    def _usage(self) -> list[str]:
        asked, output = (sum(getattr(one, name) for one in self.repeats) for name in ("asked_prompt", "asked_output"))
        used = sum(one.used_output for one in self.repeats)
        short = sum(one.short for one in self.repeats)
        if all(one.used_prompt is None for one in self.repeats):
            return [
                "usage      the server tells none: tokens are counted as events with text, and prompts as asked",
                f"           output {output} asked, {used} events; {short} answers shorter than asked",
            ]
        prompts = sum(one.used_prompt or 0 for one in self.repeats)
        cached = [one.cached_prompt for one in self.repeats if one.cached_prompt is not None]
        told = f" ({sum(cached)} of them from the server's cache)" if cached else ""
        lines = [
            f"usage      prompt tokens {asked} asked, {prompts} counted by the server{told}; output {output} asked, "
            f"{used} counted; {short} answers shorter than asked"
        ]
        rate = median(one.tokens_per_event for one in self.repeats)
        if rate > MERGED:
            lines.append(f"events     {rate:.2f} tokens an event: the server merges tokens, so ITL is a time per event")
        else:
            lines.append(f"events     {rate:.2f} tokens an event: one event a token")
        return lines

    def _client(self) -> list[str]:
        server = self._cell(lambda one: one.server_cpu and 100 * one.server_cpu)
        lines = [
            f"client     {self._cell(lambda one: 100 * one.client_cpu)} % of a core; timers late by "
            f"{self._cell(lambda one: one.lag_p99)} ms (p99); {sum(one.late for one in self.repeats)} late sends; "
            f"{self.connections} connections" + (f"; {self.resent} requests sent again" if self.resent else ""),
        ]
        if any(one.server_cpu is not None for one in self.repeats):
            lines.append(f"server     {server} % of a core")
            lines.append(f"others     {self._cell(lambda one: 100 * one.others)} % of this machine's CPUs")
        else:
            lines.append(
                f"CPUs       {self._cell(lambda one: 100 * one.others)} % of this machine in use by all but the client"
            )
        return lines

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "result": not self.faults,
            "faults": self.faults,
            "url": self.url,
            "plan": asdict(self.plan),
            "dialect": asdict(self.dialect),
            "notes": self.notes,
            "formulas": FORMULAS,
            "machine": self.machine,
            "connections": self.connections,
            "resent": self.resent,
            "repeats": [one.as_json() for one in self.repeats],
        }


# --- two runs --------------------------------------------------------------------------------------

_COMPARED: tuple[tuple[str, str, str | None], ...] = (
    ("request rate", "request_rate", None),
    ("output tokens/s", "output_rate", None),
    ("goodput", "goodput", None),
    *((f"{name.upper()} {column} ms", name, column) for name in _TIMES for column in ("p50", "p99")),
)


def read_result(path: str) -> dict[str, Any]:
    """A file that --json wrote. Raises ConfigError."""
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ConfigError(f"{path} is no result of octavo bench serve; a file written by its --json would work")
    return found


@dataclass(frozen=True)
class Compared:
    """One figure of two runs."""

    figure: str
    a: float
    b: float
    """Medians over the repeats."""
    ratio: float | None
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """B against A. "more" and "less" only where the repeats of the two do not overlap."""

    a: dict[str, Any]
    b: dict[str, Any]
    """What each was: address, model, whether it is a result."""
    differing: tuple[str, ...]
    """Parts of the plan that are not the same."""
    rows: tuple[Compared, ...]

    def text(self) -> list[str]:
        lines = [f"{name:11s}{run['url']}, model {run['model']}" for name, run in (("A", self.a), ("B", self.b))]
        for name, run in (("A", self.a), ("B", self.b)):
            if run["faults"]:
                lines.append(f"           {name} is NOT A RESULT: {run['faults'][0]}")
        if self.differing:
            lines.append(f"           the work differs in: {', '.join(self.differing)}")
        lines.append(f"{'':18s}{'A':>14s}{'B':>14s}{'B / A':>10s}")
        for row in self.rows:
            ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"
            lines.append(f"{row.figure:18s}{row.a:14.2f}{row.b:14.2f}{ratio:>10s}   {row.verdict}")
        return [*lines, APART]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "octavo bench compare", **asdict(self), "note": APART}


APART = "The two did not run interleaved: a machine that drifts between them is part of every ratio."


def compare(a: dict[str, Any], b: dict[str, Any]) -> Comparison:
    """Of two files of --json."""
    differing = tuple(name for name in a["plan"] if name != "seed" and a["plan"][name] != b["plan"].get(name))
    rows = []
    for title, name, column in _COMPARED:
        one, two = _values(a, name, column), _values(b, name, column)
        if one and two:
            rows.append(_row(title, one, two))
    return Comparison(_identity(a), _identity(b), differing, tuple(rows))


def _identity(run: dict[str, Any]) -> dict[str, Any]:
    return {"url": run["url"], "model": run["dialect"]["model"], "faults": run["faults"], "machine": run["machine"]}


def _row(title: str, one: list[float], two: list[float]) -> Compared:
    if min(len(one), len(two)) < 3:
        verdict = "fewer than three repeats"
    elif min(two) > max(one):
        verdict = "more"
    else:
        verdict = "less" if max(two) < min(one) else "no difference seen"
    a, b = median(one), median(two)
    return Compared(title, a, b, b / a if a else None, verdict)


def _values(run: dict[str, Any], name: str, column: str | None) -> list[float]:
    found = [one[name] if column is None else one[name].get(column) for one in run["repeats"]]
    return [float(value) for value in found if value is not None]
