"""The plots of the report: SVG text that goes into the page as it is, with the page's own colours.

Matplotlib draws; text stays text. Ink and lines take the page's colours (light or dark), and the series have mid tones
that can be read on both. Identifiers get a prefix, for many drawings share a page. Off switch: a run without `--html`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_INK = "#010203"
_FAINT = "#010204"
_PAGE = {_INK: "currentColor", _FAINT: "var(--line)"}
"""Colours that no series has, and what they become in the page."""
TONES = ("#d9632e", "#3f86d8", "#2f9e6b", "#a667c9", "#b58a1b", "#c94f7c", "#4a9aa5", "#7d7f3a")
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", ":", "-.")
_WIDTH = 5.6
_LABEL = 36
"""Characters of a name in a plot."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "octavo",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.axisbelow": True,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True)
class Point:
    """A value with its spread."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """One contender: `tone` is the number of its colour, its place among those of one colour gives its mark."""

    name: str
    tone: int
    points: tuple[tuple[str, Point], ...]
    """(label on the axis, value)."""


@dataclass(frozen=True)
class Drawing:
    """One plot in the page. `alternative` says in words what it shows."""

    title: str
    alternative: str
    svg: str


def by_streams(key: str, title: str, series: Sequence[Series], order: Sequence[str], axis: tuple[str, str]) -> Drawing:
    """Lines over the number of streams; bars are the spread. axis: labels of x and y. Logarithmic but for a zero."""
    log = all(point.value > 0 for one in series for _, point in one.points)

    def draw(axes: Axes) -> None:
        looks = _looks(series)
        for one in series:
            places = [order.index(label) for label, _ in one.points]
            values = [point.value for _, point in one.points]
            tone, mark, dash = looks[one.name]
            axes.errorbar(
                places,
                values,
                yerr=_arms([point for _, point in one.points]),
                label=_short(one.name),
                color=tone,
                marker=mark,
                linestyle=dash,
                markersize=5,
                linewidth=1.4,
                capsize=2,
            )
        axes.set_xticks(range(len(order)), list(order))
        axes.set_xlabel(axis[0])
        axes.set_ylabel(axis[1])
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.6g}"))
            axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.grid(True, axis="y")
        _legend(axes, "outside lower center", 2)

    alternative = "; ".join(
        f"{one.name}: " + ", ".join(f"{label}: {point.value:.4g}" for label, point in one.points) for one in series
    )
    height = 3.4 + 0.23 * -(-len(series) // 2)
    return Drawing(title, f"{title}. {alternative}", _svg(key, draw, height))


def bars(key: str, title: str, series: Sequence[Series], label: str) -> Drawing:
    """One horizontal bar for each series' only point, the longest first."""

    def draw(axes: Axes) -> None:
        looks = _looks(series)
        for place, one in enumerate(ordered):
            point = one.points[0][1]
            axes.barh(place, point.value, color=looks[one.name][0], height=0.62)
            if point.high > point.low:
                axes.errorbar(point.value, place, xerr=_arms([point]), color=_INK, capsize=2, linewidth=1)
            text = f"{point.value:,.0f}" if point.value >= 100 else f"{point.value:.3g}"
            end = (max(point.value, point.high), place)
            axes.annotate(text, end, (5, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(range(len(ordered)), [_short(one.name) for one in ordered])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.18 * max(max(one.points[0][1].high, one.points[0][1].value) for one in ordered))
        axes.set_xlabel(label)
        axes.grid(True, axis="x")

    ordered = sorted(series, key=lambda one: -one.points[0][1].value)
    alternative = ", ".join(f"{one.name}: {one.points[0][1].value:.4g}" for one in ordered)
    return Drawing(title, f"{title}. {alternative}", _svg(key, draw, 0.8 + 0.3 * len(ordered)))


def ratios(key: str, title: str, series: Sequence[Series]) -> Drawing:
    """Ratios with their intervals against the line at 1; one series for each peer."""
    labels = list(dict.fromkeys(label for one in series for label, _ in one.points))

    def draw(axes: Axes) -> None:
        looks = _looks(series)
        axes.axvline(1.0, color=_INK, linewidth=1)
        for index, one in enumerate(series):
            shift = (index - (len(series) - 1) / 2) * 0.22
            tone, mark, _ = looks[one.name]
            axes.errorbar(
                [point.value for _, point in one.points],
                [labels.index(label) + shift for label, _ in one.points],
                xerr=_arms([point for _, point in one.points]),
                label=_short(one.name),
                color=tone,
                marker=mark,
                linestyle="none",
                markersize=5,
                capsize=2,
            )
        axes.set_yticks(range(len(labels)), [_short(label) for label in labels])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:.3g}"))
        axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.set_xlabel("times as fast (95 % interval)")
        axes.grid(True, axis="x")
        _legend(axes, "outside upper center", len(series))

    alternative = "; ".join(
        f"{one.name}: "
        + ", ".join(f"{label} {point.value:.3f} ({point.low:.3f} to {point.high:.3f})" for label, point in one.points)
        for one in series
    )
    return Drawing(title, f"{title}. {alternative}", _svg(key, draw, 1.3 + 0.42 * len(labels)))


def _legend(axes: Axes, place: str, columns: int) -> None:
    """Of the figure, for which the layout makes room."""
    assert isinstance(axes.figure, Figure)
    axes.figure.legend(loc=place, ncols=max(1, columns))


def _short(name: str) -> str:
    """A label leaves room for what it is the label of."""
    return name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…"


def _looks(series: Sequence[Series]) -> dict[str, tuple[str, str, str]]:
    seen: dict[int, int] = {}
    found = {}
    for one in series:
        place = seen[one.tone] = seen.get(one.tone, -1) + 1
        found[one.name] = (TONES[one.tone % len(TONES)], _MARKS[place % len(_MARKS)], _DASHES[place % len(_DASHES)])
    return found


def _arms(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    below = [max(0.0, point.value - point.low) for point in points]
    return below, [max(0.0, point.high - point.value) for point in points]


def _svg(key: str, draw: Callable[[Axes], None], height: float) -> str:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure.subplots())
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)
    return _for_page(key, file.getvalue())


def _for_page(key: str, text: str) -> str:
    """An element of the page: no prolog, no metadata, no addresses, the page's colours, names of its own."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'href="#', f'href="#{key}-', text)
    text = re.sub(r"url\(#", f"url(#{key}-", text)
    # The page's width decides, in both directions.
    text = re.sub(r'<svg width="[^"]*" height="[^"]*"', "<svg", text, count=1)
    for colour, own in _PAGE.items():
        text = text.replace(colour, own)
    return text.strip()
