"""One page about a comparison: everything in one file, no script, no address to fetch; light or dark as the reader is.

From the values of a result file alone, so a stored run can be shown again. The template escapes everything but the
drawings, which are made here. Off switch: no `--html`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from octavo.bench.peers import plots
from octavo.bench.peers.plots import Drawing, Point, Series
from octavo.bench.peers.result import ContenderRead, RatioRead, Result, RowRead, parse

OWN = "octavo"
_TEMPLATE = Path(__file__).with_name("report.html.j2")
_FIGURES = {
    "decode": ("Decode", "tokens a second"),
    "prefill": ("Prefill", "prompt tokens a second"),
    "output": ("Output, the time of prompts included", "output tokens a second"),
}
_WAYS = {"offline": "Without a server", "http": "Through HTTP servers"}
_LATENCIES = {
    "ttft_p50_ms": "Time to first token, median, ms",
    "itl_p50_ms": "Gap between two events, median, ms",
}
_COLUMNS = (
    ("ttft_p50_ms", "TTFT p50"),
    ("ttft_p99_ms", "TTFT p99"),
    ("itl_p50_ms", "ITL p50"),
    ("itl_p99_ms", "ITL p99"),
    ("tpot_p50_ms", "TPOT p50"),
)


def report_html(values: dict[str, Any]) -> str:
    """The page of a result. Raises ConfigError where `values` are none."""
    result = parse(values)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["figure"] = _number
    page = environment.from_string(_TEMPLATE.read_text())
    return page.render(
        result=result,
        lines=result.lines or _machine(result.machine),
        findings=list(_findings(result)),
        sections=[_section(result, way) for way in result.ways()],
        costs=_costs(result),
        contenders=result.contenders,
        problems=[*result.problems, *(f"{one.name}: {one.problem}" for one in result.contenders if one.problem)],
        left_out=[one.left_out for one in result.contenders if one.left_out],
        drawn=_drawn,
        limits=None if any(line.startswith("limits") for line in result.lines) else result.machine.get("limits"),
    )


def _drawn(drawing: Drawing) -> Markup:
    """Made by plots.py, which escapes what it is given."""
    return Markup(drawing.svg)


def _number(value: float | None, digits: int = 4) -> str:
    """As many digits as a measurement bears."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _machine(machine: dict[str, Any]) -> list[str]:
    return [f"{name}: {value}" for name, value in machine.items()]


def _findings(result: Result) -> Iterable[str]:
    """Octavo's best form at each work against each peer's best, in a sentence."""
    best: dict[tuple[str, str], RatioRead] = {}
    for ratio in result.ratios:
        key = (ratio.way, ratio.work)
        rows = [row for row in result.rows if row.work == ratio.work and row.peer == OWN and row.way == ratio.way]
        top = max(rows, key=lambda row: row.median, default=None)
        if top is not None and top.contender == ratio.octavo:
            lowest = best.get(key)
            if lowest is None or ratio.median < lowest.median:
                best[key] = ratio
    for ratio in best.values():
        unclear = "" if ratio.verdict in ("more", "less") else f": {ratio.verdict}"
        interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.2f} to {ratio.high:.2f})"
        value = ratio.median if ratio.value is None else ratio.value
        yield (
            f"{result.work(ratio.work).text}, {ratio.figure}: {ratio.octavo} is {value:.2f} times{interval} as fast as "
            f"{ratio.best_form}, the fastest of the peers{unclear}"
        )


def _section(result: Result, way: str) -> dict[str, Any]:
    """All of one way: plots and tables."""
    rows = [row for row in result.rows if row.way == way]
    return {
        "way": way,
        "title": _WAYS.get(way, way),
        "drawings": [*_ratio_plots(result, way), *_figure_plots(result, way, rows), *_latency_plots(result, way)],
        "ratios": [ratio for ratio in result.ratios if ratio.way == way],
        "rows": rows,
        "latencies": _latency_rows(result, rows),
        "columns": [title for _, title in _COLUMNS],
    }


def _ratio_plots(result: Result, way: str) -> Iterable[Drawing]:
    """One for each form of Octavo."""
    ratios = [ratio for ratio in result.ratios if ratio.way == way]
    for number, name in enumerate(dict.fromkeys(ratio.octavo for ratio in ratios)):
        peers = dict.fromkeys(ratio.peer for ratio in ratios)
        series = [
            Series(
                f"against {peer}",
                _tone(result, peer),
                tuple(
                    (f"{ratio.figure}: {_short(result, ratio.work)}", _interval(ratio))
                    for ratio in ratios
                    if (ratio.octavo, ratio.peer) == (name, peer)
                ),
            )
            for peer in peers
        ]
        yield plots.ratios(f"{way}-ratio{number}", f"{name} over each peer's best form", _filled(series))


def _interval(ratio: RatioRead) -> Point:
    """A point without arms where there is no interval."""
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return _exactly(ratio.median)
    return Point(ratio.value, ratio.low, ratio.high)


def _tone(result: Result, peer: str) -> int:
    """One colour a peer, in all plots of a page."""
    return list(dict.fromkeys(one.peer for one in result.contenders)).index(peer)


def _short(result: Result, name: str) -> str:
    work = result.work(name)
    return f"{work.streams} x {work.prompt} + {work.output}"


def _figure_plots(result: Result, way: str, rows: Sequence[RowRead]) -> Iterable[Drawing]:
    for figure in dict.fromkeys(row.figure for row in rows):
        chosen = [row for row in rows if row.figure == figure]
        works = [work for work in result.works if any(row.work == work.name for row in chosen)]
        works.sort(key=lambda work: (work.streams, work.prompt, work.output))
        title, unit = _FIGURES.get(figure, (figure, figure))
        if len(works) > 1:
            labels = {work.name: _label(result, work.name, [one.name for one in works]) for work in works}
            series = [
                Series(
                    one.name,
                    _tone(result, one.peer),
                    tuple((labels[row.work], _point(row)) for row in _ordered(chosen, one, works)),
                )
                for one in result.contenders
            ]
            axis = ("users" if way == "http" else "streams", unit)
            yield plots.by_streams(f"{way}-{figure}", title, _filled(series), list(labels.values()), axis)
        else:
            series = [Series(row.contender, _tone(result, row.peer), ((row.work, _point(row)),)) for row in chosen]
            yield plots.bars(f"{way}-{figure}", f"{title}: {works[0].text}", series, unit)


def _label(result: Result, name: str, all_names: Sequence[str]) -> str:
    """Streams, and the lengths too where two works have as many."""
    work = result.work(name)
    same = [other for other in all_names if result.work(other).streams == work.streams]
    return str(work.streams) if len(same) == 1 else f"{work.streams}\n{work.prompt} + {work.output}"


def _ordered(rows: Sequence[RowRead], contender: ContenderRead, works: Sequence[Any]) -> Iterable[RowRead]:
    for work in works:
        yield from (row for row in rows if (row.contender, row.work) == (contender.name, work.name))


def _point(row: RowRead) -> Point:
    return Point(row.median, row.low, row.high)


def _filled(series: Iterable[Series]) -> list[Series]:
    return [one for one in series if one.points]


def _latency_plots(result: Result, way: str) -> Iterable[Drawing]:
    works = sorted((work for work in result.works if work.way == way), key=lambda work: work.streams)
    for name, title in _LATENCIES.items():
        series = []
        for one in result.contenders:
            found = [(work, result.extras(one.name, work.name, name)) for work in works]
            points = tuple((work.name, Point(median(v), min(v), max(v))) for work, v in found if v)
            series.append(
                Series(one.name, _tone(result, one.peer), tuple((str(result.work(w).streams), p) for w, p in points))
            )
        if filled := _filled(series):
            order = list(dict.fromkeys(str(work.streams) for work in works))
            yield plots.by_streams(f"{way}-{name}", title, filled, order, ("users", "ms"))


def _latency_rows(result: Result, rows: Sequence[RowRead]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        cells = [result.extras(row.contender, row.work, name) for name, _ in _COLUMNS]
        if any(cells):
            found.append(
                {
                    "work": row.work,
                    "contender": row.contender,
                    "cells": [median(cell) if cell else None for cell in cells],
                }
            )
    return found


def _costs(result: Result) -> list[Drawing]:
    """Time to start and memory, where they were measured."""
    found = []
    start = [
        Series(one.name, _tone(result, one.peer), (("start", _exactly(one.start_seconds)),))
        for one in result.contenders
        if one.start_seconds
    ]
    if start:
        found.append(plots.bars("start", "Start to ready, files in the page cache", start, "seconds"))
    memory = [
        Series(one.name, _tone(result, one.peer), (("memory", _exactly(one.memory_bytes / 1e6)),))
        for one in result.contenders
        if one.memory_bytes
    ]
    if memory:
        found.append(plots.bars("memory", "Memory after the runs (PSS of all its processes)", memory, "MB"))
    return found


def _exactly(value: float) -> Point:
    return Point(value, value, value)
