"""What a comparison says: rates with their quartiles, and ratios of Octavo to the best form of each other engine.

Ratios are paired: Octavo's rate over the other's in the same round, group and work, with the interval of
`bench/stats.py`. An interval that contains 1 is "no difference seen"; quartiles further apart than a quarter of the
median are "too noisy to be a result". An engine's best form is chosen for each work, by the greatest median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.bench.machine import NOISY, Limits, as_json, header, noise
from octavo.bench.peers.compare import Comparison
from octavo.bench.peers.contender import Contender, Sample, Work
from octavo.bench.stats import LEAST_PAIRS, Ratio, Spread, paired_ratio, spread

OWN = "octavo"


@dataclass(frozen=True)
class Row:
    """One contender at one work."""

    work: Work
    contender: Contender
    rate: Spread
    best: bool
    """The best form of its engine, driven this way."""

    @property
    def steady(self) -> bool:
        return self.rate.relative <= NOISY


@dataclass(frozen=True)
class Against:
    """One of Octavo's contenders against the best form of another engine."""

    work: Work
    own: Contender
    other: Contender
    ratio: Ratio | None
    """None where there are too few rounds for an interval."""
    middle: float
    """Median of the rounds' ratios."""


def rows_of(found: Comparison) -> list[Row]:
    """By work, in the contenders' order; who has no samples has no row."""
    rows = []
    for work in found.works:
        spreads = {
            contender: spread([sample.rate(work.figure) for sample in samples])
            for contender in found.contenders
            if (samples := _samples(found, contender, work))
        }
        for contender, rate in spreads.items():
            rivals = [
                other.median
                for rival, other in spreads.items()
                if (rival.peer, rival.way) == (contender.peer, contender.way)
            ]
            rows.append(Row(work, contender, rate, rate.median == max(rivals)))
    return rows


def ratios_of(found: Comparison, rows: Sequence[Row]) -> list[Against]:
    """Each of Octavo's contenders against each other engine's best form, driven the same way."""
    result = []
    for own in rows:
        if own.contender.peer != OWN:
            continue
        for other in rows:
            same = other.work == own.work and other.contender.way == own.contender.way
            if same and other.best and other.contender.peer != OWN:
                result.append(_against(found, own.work, own.contender, other.contender))
    return [against for against in result if against is not None]


def _against(found: Comparison, work: Work, own: Contender, other: Contender) -> Against | None:
    ours = {(s.group, s.round): s.rate(work.figure) for s in _samples(found, own, work)}
    pairs = [
        (sample.rate(work.figure), ours[sample.group, sample.round])
        for sample in _samples(found, other, work)
        if (sample.group, sample.round) in ours
    ]
    if not pairs:
        return None
    theirs, mine = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratio = paired_ratio(theirs, mine, found.seed) if len(pairs) >= LEAST_PAIRS else None
    return Against(work, own, other, ratio, spread([m / t for t, m in pairs]).median)


def _samples(found: Comparison, contender: Contender, work: Work) -> list[Sample]:
    return [s for s in found.samples if s.contender == contender.name and s.work == work.name]


def text_of(found: Comparison, rows: Sequence[Row], ratios: Sequence[Against], lines: Sequence[str]) -> list[str]:
    """The report to a person."""
    out = list(lines)
    for contender in found.contenders:
        seen = found.seen[contender.name]
        if seen.problem is not None:
            out.append(f"problem    {seen.problem}")
        if seen.left_out is not None:
            out.append(f"left out   {seen.left_out}")
        if seen.facts:
            facts = ", ".join(f"{name} {value}" for name, value in seen.facts.items() if name != "vocab")
            out.append(f"{contender.name:24s} {facts}; ready in {seen.start_seconds:.1f} s; {_mb(seen.memory_bytes)}")
    for work in found.works:
        out += ["", _work_line(work)]
        for row in rows:
            if row.work == work:
                out.append(_row_line(row))
        out += [_ratio_line(against) for against in ratios if against.work == work]
    out += ["", f"rounds     {found.rounds}, {found.seconds / 60:.1f} minutes in all", f"seed       {found.seed}"]
    if len(found.groups) > 1:
        out.append(f"groups     {len(found.groups)}: memory does not hold all at once; ratios are taken within a group")
    return [*out, *noise(found.others, None)]


def _work_line(work: Work) -> str:
    return f"{work.name}: streams {work.streams}, prompt {work.prompt}, output {work.output}; {work.unit}"


def _row_line(row: Row) -> str:
    quartiles = f"({row.rate.low:.1f} to {row.rate.high:.1f})"
    mark = "*" if row.best else " "
    note = "" if row.steady else "   too noisy to be a result"
    return f"  {mark} {row.contender.name:24s} {row.rate.median:9.1f} {quartiles:22s}{note}"


def _ratio_line(against: Against) -> str:
    head = f"    {against.own.name} / {against.other.name}"
    if against.ratio is None:
        return f"{head:44s} {against.middle:.2f}: no result, an interval takes {LEAST_PAIRS} rounds"
    ratio = against.ratio
    return f"{head:44s} {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.pairs} pairs): {ratio.verdict}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


@dataclass(frozen=True)
class Setting:
    """What the measurement was made with."""

    isa: str
    threads: int
    limits: Limits | None
    model: Path
    digest: str
    quick: bool

    @property
    def lines(self) -> list[str]:
        return [*header(self.isa, self.threads, self.limits), f"model      {self.model.name}"]


def json_of(found: Comparison, rows: Sequence[Row], ratios: Sequence[Against], setting: Setting) -> dict[str, Any]:
    """For result files and the HTML report."""
    return {
        "kind": "peers",
        "machine": as_json(setting.limits),
        "lines": setting.lines,
        "model": {"file": setting.model.name, "sha256": setting.digest},
        "seed": found.seed,
        "others": found.others,
        "rounds": found.rounds,
        "quick": setting.quick,
        "seconds": found.seconds,
        "groups": [list(group) for group in found.groups],
        "works": [asdict(work) for work in found.works],
        "contenders": [_contender(found, contender) for contender in found.contenders],
        "samples": [asdict(sample) for sample in found.samples],
        "rows": [
            {
                "work": row.work.name,
                "contender": row.contender.name,
                "peer": row.contender.peer,
                "form": row.contender.form,
                "way": row.contender.way,
                "figure": row.work.figure,
                **asdict(row.rate),
                "steady": row.steady,
                "best": row.best,
            }
            for row in rows
        ],
        "ratios": [_ratio(against) for against in ratios],
    }


def _contender(found: Comparison, contender: Contender) -> dict[str, Any]:
    seen = found.seen[contender.name]
    return {
        "name": contender.name,
        "peer": contender.peer,
        "form": contender.form,
        "way": contender.way,
        "versions": contender.versions,
        **asdict(seen),
    }


def _ratio(against: Against) -> dict[str, Any]:
    ratio = against.ratio
    return {
        "work": against.work.name,
        "way": against.own.way,
        "figure": against.work.figure,
        "octavo": against.own.name,
        "peer": against.other.peer,
        "best_form": against.other.name,
        "median": against.middle,
        "value": None if ratio is None else ratio.value,
        "low": None if ratio is None else ratio.low,
        "high": None if ratio is None else ratio.high,
        "pairs": None if ratio is None else ratio.pairs,
        "verdict": "no result" if ratio is None else ratio.verdict,
    }
