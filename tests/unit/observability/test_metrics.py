"""Metrics: counters never fall, a failure inside them stops nothing, the page is Prometheus' text."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.observability.metrics import Metrics
from octavo.types import EngineStats, StepOutput


def stats(steps: int, **changes: Any) -> StepOutput:
    fields: dict[str, Any] = dict.fromkeys(EngineStats.__struct_fields__, 0) | {
        "steps": steps,
        "step_seconds": steps / 100,
        "step_prices": (0.001, 0.0, 0.0, 0.0, 0.0),
        "drafts_checked": (),
        "drafts_accepted": (),
    }
    return StepOutput([], EngineStats(**(fields | changes)))


def value(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    raise AssertionError(f"there is no {name} {labels}")


def test_counters_go_on_where_they_were_when_the_engine_is_started_again() -> None:
    metrics = Metrics()
    metrics.step(stats(5, generated_tokens=50, preemptions=2))
    metrics.step(stats(7, generated_tokens=70, preemptions=2))
    metrics.step(stats(1, generated_tokens=3))
    assert value(metrics, "octavo_generated_tokens_total") == 73
    assert value(metrics, "octavo_preemptions_total") == 2
    metrics.step(stats(2, generated_tokens=4))
    assert value(metrics, "octavo_generated_tokens_total") == 74
    assert value(metrics, "octavo_step_seconds_count") == 9


def test_a_failing_metric_is_logged_once_a_while_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()

    def broken(output: StepOutput) -> None:
        raise RuntimeError("the sink is broken")

    monkeypatch.setattr(metrics, "_take_step", broken)
    with caplog.at_level(logging.ERROR):
        for steps in range(100):
            metrics.step(stats(steps))
    assert len(caplog.records) == 1
    metrics.finished("stop")
    assert value(metrics, "octavo_requests_total", finish_reason="stop") == 1


def test_latencies_are_histograms_over_tokens() -> None:
    metrics = Metrics()
    metrics.first_token(0.3)
    metrics.tokens(0.04, 4)
    assert value(metrics, "octavo_time_to_first_token_seconds_bucket", le="0.25") == 0
    assert value(metrics, "octavo_time_to_first_token_seconds_bucket", le="0.5") == 1
    assert value(metrics, "octavo_inter_token_seconds_count") == 4
    assert value(metrics, "octavo_inter_token_seconds_sum") == pytest.approx(0.04)


def test_before_the_first_step_everything_is_zero() -> None:
    assert value(Metrics(), "octavo_requests_running") == 0
    assert value(Metrics(), "octavo_kv_usage_ratio") == 0


def test_drafts_are_counted_by_position_and_by_length_over_restarts() -> None:
    metrics = Metrics()
    assert b"draft" not in metrics.text()
    drafts = {"drafts_checked": (10, 8), "drafts_accepted": (6, 3), "draft_seconds": 0.5, "draft_saved_seconds": 0.05}
    metrics.step(stats(5, **drafts))
    metrics.step(stats(1, drafts_checked=(1, 1), drafts_accepted=(1, 0), draft_seconds=0.0, draft_saved_seconds=0.01))
    assert value(metrics, "octavo_drafts_checked_total", position="1") == 11
    assert value(metrics, "octavo_drafts_accepted_total", position="2") == 3
    assert value(metrics, "octavo_accepted_tokens_bucket", le="0") == 4
    assert value(metrics, "octavo_accepted_tokens_bucket", le="1") == 8
    assert value(metrics, "octavo_accepted_tokens_count") == 11
    assert value(metrics, "octavo_accepted_tokens_sum") == 10
    assert value(metrics, "octavo_draft_seconds_total") == 0.5
    assert value(metrics, "octavo_speculation_speedup") == pytest.approx(2.0)
