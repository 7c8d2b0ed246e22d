"""Metrics in Prometheus' text format.

Owns the registry of one server. The engine's counters come as snapshots, one a step, and are told as they are; when
the engine is started again its counters go on from where they were, so nothing ever falls. Latencies are counted in
the server. A failure in here is logged, at most once a minute, and never reaches a request. Off switch: nobody has to
scrape; the cost is about a microsecond a token.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from octavo.observability.draft_metrics import DraftMetrics
from octavo.types import EngineStats, StepOutput

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_COUNTERS = {
    "prompt_tokens": ("octavo_prompt_tokens", "Prompt positions computed, cache hits and recomputation excluded."),
    "prefix_queries": ("octavo_prefix_cache_queries", "Prompt tokens looked for in the prefix cache."),
    "cached_prompt_tokens": ("octavo_cached_prompt_tokens", "Prompt tokens taken from the prefix cache: hits."),
    "resumed_tokens": ("octavo_resumed_tokens", "Positions found again after a preemption; no hits."),
    "refused_hits": ("octavo_prefix_cache_refused_hits", "Hits that --verify-prefix-cache found wrong."),
    "evicted_blocks": ("octavo_prefix_cache_evictions", "Cached blocks given up for others."),
    "recomputed_tokens": ("octavo_recomputed_tokens", "Positions computed again after a preemption."),
    "generated_tokens": ("octavo_generated_tokens", "Tokens generated."),
    "preemptions": ("octavo_preemptions", "Requests that gave up their blocks to others."),
    "steps": ("octavo_steps", "Engine steps."),
    "step_seconds": ("octavo_step_busy_seconds", "Wall time inside engine steps."),
    "disk_hits": ("octavo_kv_disk_hits", "Requests for which KV blocks came from disk."),
    "disk_tokens": ("octavo_kv_disk_tokens", "Tokens that they brought, part of the cached prompt tokens."),
    "disk_read_bytes": ("octavo_kv_disk_read_bytes", "Bytes of KV blocks read from disk."),
    "disk_read_seconds": ("octavo_kv_disk_read_seconds", "Time that reading them took."),
    "disk_written_bytes": ("octavo_kv_disk_written_bytes", "Bytes of KV blocks written to disk."),
    "disk_dropped_blocks": ("octavo_kv_disk_dropped_blocks", "Evicted blocks not kept, for the disk was behind."),
    "disk_errors": ("octavo_kv_disk_errors", "Damaged KV files, and reads and writes that failed."),
    "predicted_seconds": ("octavo_step_predicted_seconds", "Wall time of steps as the step-time model predicted it."),
}
_GAUGES = {
    "running": ("octavo_requests_running", "Requests in the batch."),
    "waiting_tokens": ("octavo_waiting_tokens", "Positions that waiting requests have to compute."),
    "waiting": ("octavo_requests_waiting", "Requests that wait for admission."),
    "kv_blocks_total": ("octavo_kv_blocks", "Blocks of the KV pool."),
    "kv_blocks_free": ("octavo_kv_blocks_free", "Blocks that no running request needs, evictable ones included."),
    "step_budget": ("octavo_step_budget_tokens", "Tokens that the newest step could have."),
    "pinned_blocks": ("octavo_kv_blocks_pinned", "Blocks that pins hold."),
    "kv_blocks_cached": ("octavo_kv_blocks_cached", "Blocks that the prefix cache can find."),
    "disk_bytes": ("octavo_kv_disk_bytes", "Bytes of KV blocks on disk."),
    "disk_on": ("octavo_kv_disk_on", "1 while KV blocks are kept on disk and read from there."),
}

_LIVE = {
    "connections": ("octavo_http_connections", "Open connections."),
    "tasks": ("octavo_server_tasks", "Tasks of the server's event loop."),
}


_PARTS = ("fixed", "token", "row", "context", "pair")
"""Of `EngineStats.step_prices`."""


_REPLIES = {
    "prompt_tokens": ("octavo_reply_prompt_tokens", "Prompt tokens in the usage of complete replies."),
    "cached_tokens": ("octavo_reply_cached_prompt_tokens", "Of those, tokens taken from the prefix cache."),
    "completion_tokens": ("octavo_reply_completion_tokens", "Generated tokens in the usage of complete replies."),
}


class Histogram:
    """Counts by upper bound."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, name: str, help_text: str) -> Metric:
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), total))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self._sum)


class Metrics:
    """What one server has seen."""

    def __init__(self) -> None:
        self._stats: EngineStats | None = None
        self._base = dict.fromkeys(_COUNTERS, 0.0)
        """Counters of the engine's earlier lives."""
        self._finished: dict[str, int] = dict.fromkeys(("stop", "length", "tool_calls", "abort", "error"), 0)
        self._http: dict[tuple[str, int], int] = {}
        self._replies = dict.fromkeys(_REPLIES, 0)
        self._first_token = Histogram()
        self._between_tokens = Histogram()
        self._step = Histogram()
        self._drafts = DraftMetrics()
        self._restarts = 0
        self.live: dict[str, Callable[[], float]] = {}
        """Of `_LIVE`: what is asked each time the page is made; nothing is told as 0."""
        self._last_complaint = -60.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # --- what happens -------------------------------------------------------------------------------

    def step(self, output: StepOutput) -> None:
        """A message from the engine."""
        self._guarded(self._take_step, output)

    def first_token(self, seconds: float) -> None:
        self._guarded(self._first_token.observe, seconds)

    def tokens(self, seconds: float, count: int) -> None:
        """`count` tokens came `seconds` after the ones before."""
        self._guarded(self._between_tokens.observe, seconds / max(count, 1), count)

    def finished(self, reason: str) -> None:
        """A request (one choice) has ended."""
        self._guarded(self._count, self._finished, reason)

    def replied(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> None:
        """A reply is complete; its usage says so."""
        self._guarded(self._take_reply, prompt_tokens, cached_tokens, completion_tokens)

    def _take_reply(self, *counts: int) -> None:
        for name, count in zip(_REPLIES, counts, strict=True):
            self._replies[name] += count

    def responded(self, path: str, status: int) -> None:
        self._guarded(self._count, self._http, (path, status))

    def restarted(self, restarts: int) -> None:
        self._restarts = restarts

    @staticmethod
    def _count(table: dict[Any, int], key: Any) -> None:
        table[key] = table.get(key, 0) + 1

    def _take_step(self, output: StepOutput) -> None:
        stats = output.stats
        last = self._stats
        self._drafts.take(stats, last is not None and stats.steps < last.steps)
        if last is not None and stats.steps < last.steps:
            for field in _COUNTERS:
                self._base[field] += getattr(last, field)
            last = None
        steps = stats.steps - (last.steps if last is not None else 0)
        if steps > 0:
            self._step.observe((stats.step_seconds - (last.step_seconds if last is not None else 0.0)) / steps, steps)
        self._stats = stats

    def _guarded(self, record: Callable[..., None], *arguments: Any) -> None:
        """Records; a failure is logged and stops nothing."""
        try:
            record(*arguments)
        except Exception:
            now = time.monotonic()
            if now - self._last_complaint >= 60.0:
                self._last_complaint = now
                logger.exception("a metric could not be recorded")

    # --- what is told -------------------------------------------------------------------------------

    def text(self) -> bytes:
        """The page that /metrics serves."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        stats = self._stats
        for field, (name, help_text) in _GAUGES.items():
            yield GaugeMetricFamily(name, help_text, value=0 if stats is None else getattr(stats, field))
        prices = GaugeMetricFamily("octavo_step_price_seconds", "Learnt: a step's seconds by part.", labels=["part"])
        for part, price in zip(_PARTS, stats.step_prices if stats else (0.0,) * len(_PARTS), strict=True):
            prices.add_metric([part], price)
        yield prices
        for field, (name, help_text) in _LIVE.items():
            yield GaugeMetricFamily(name, help_text, value=self.live.get(field, int)())
        used = 0.0 if stats is None or not stats.kv_blocks_total else 1 - stats.kv_blocks_free / stats.kv_blocks_total
        yield GaugeMetricFamily("octavo_kv_usage_ratio", "Part of the KV pool that running requests hold.", value=used)
        for field, (name, help_text) in _COUNTERS.items():
            value = self._base[field] + (0 if stats is None else getattr(stats, field))
            yield CounterMetricFamily(name, help_text, value=value)
        for name, (metric, help_text) in _REPLIES.items():
            yield CounterMetricFamily(metric, help_text, value=self._replies[name])
        yield CounterMetricFamily("octavo_engine_restarts", "Engines started after a death.", value=self._restarts)
        finished = CounterMetricFamily("octavo_requests", "Requests ended, by reason.", labels=["finish_reason"])
        for reason, count in self._finished.items():
            finished.add_metric([reason], count)
        yield finished
        responses = CounterMetricFamily("octavo_http_responses", "Responses begun.", labels=["path", "status"])
        for (path, status), count in self._http.items():
            responses.add_metric([path, str(status)], count)
        yield responses
        yield self._first_token.family("octavo_time_to_first_token_seconds", "From the request's arrival.")
        yield self._between_tokens.family("octavo_inter_token_seconds", "Between a choice's tokens, as they arrive.")
        yield self._step.family("octavo_step_seconds", "Wall time of one engine step.")
        yield from self._drafts.collect()
