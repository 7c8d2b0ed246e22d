"""Metrics of speculative decoding: acceptance by position, accepted tokens a draft, its time and what it brought.

Owned by `Metrics`; fed with the engine's snapshots; goes on from where it was when the engine is started again. While
speculation is off there is nothing to tell, and no line.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from octavo.types import EngineStats

Counts = tuple[int, ...]


class DraftMetrics:
    """See the module."""

    def __init__(self) -> None:
        self._base: tuple[Counts, Counts, float] = ((), (), 0.0)
        """Of the engine's earlier lives."""
        self._stats: EngineStats | None = None

    def take(self, stats: EngineStats, restarted: bool) -> None:
        """A snapshot; restarted: its counters begin anew."""
        if restarted:
            self._base = self._totals()
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Called with the rest of the page."""
        checked, accepted, seconds = self._totals()
        if self._stats is None or not checked:
            return
        for name, help_text, counts in (
            ("octavo_drafts_checked", "Draft tokens checked, by their position in the draft.", checked),
            ("octavo_drafts_accepted", "Draft tokens accepted, by their position in the draft.", accepted),
        ):
            family = CounterMetricFamily(name, help_text, labels=["position"])
            for position, count in enumerate(counts, 1):
                family.add_metric([str(position)], count)
            yield family
        buckets = [(str(length), float(checked[0] - more)) for length, more in enumerate(accepted)]
        buckets.append(("+Inf", float(checked[0])))
        yield HistogramMetricFamily(
            "octavo_accepted_tokens", "Accepted tokens of a draft.", buckets=buckets, sum_value=float(sum(accepted))
        )
        yield CounterMetricFamily("octavo_draft_seconds", "Time spent on making drafts.", value=seconds)
        busy = self._stats.step_seconds + self._stats.draft_seconds
        without = self._stats.step_seconds + self._stats.draft_saved_seconds
        share = _ratio(self._stats.draft_seconds, busy)
        yield GaugeMetricFamily("octavo_draft_share", "Part of the engine's time spent on making drafts.", share)
        yield GaugeMetricFamily(
            "octavo_speculation_speedup",
            "Time that the tokens would have taken without drafts, by the step-time model, over what they took.",
            _ratio(without, busy) or 1.0,
        )

    def _totals(self) -> tuple[Counts, Counts, float]:
        checked, accepted, seconds = self._base
        stats = self._stats
        if stats is None:
            return self._base
        return (
            _sum(checked, stats.drafts_checked),
            _sum(accepted, stats.drafts_accepted),
            seconds + stats.draft_seconds,
        )


def _sum(one: Counts, two: Counts) -> Counts:
    return tuple([a + b for a, b in zip_longest(one, two, fillvalue=0)])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
