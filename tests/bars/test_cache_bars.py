"""The short form of the cache's rows of `make bars`: what is exact is asserted, speed is printed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import prefix_trace
from benchmarks.bars import ROWS, verdict
from octavo.bench.serve.arrivals import Arrival, Block


def _told(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, Any]:
    result = ROWS[name](True)
    with capsys.disabled():
        print(f"\n{name}:", verdict(result))
    return result


def test_the_engines_lru_is_that_of_a_list_and_belady_bounds_all(capsys: pytest.CaptureFixture[str]) -> None:
    result = _told(capsys, "prefix-trace")
    assert result["met"], result


def test_beladys_rule_beats_lru_where_the_future_is_a_loop() -> None:
    loop = prefix_trace.accesses([Arrival(0.0, (Block(f"{i % 5}", 64),), 1) for i in range(50)])
    lru, best = (prefix_trace.Offline(loop, 8, belady).hits() for belady in (False, True))
    assert lru == 0 and best > 50 * 64 * 0.5


def test_paging_wastes_what_the_formula_says(capsys: pytest.CaptureFixture[str]) -> None:
    result = _told(capsys, "paged-waste")
    details = result["details"]
    assert details["waste"] < 0.05 and details["waste"] < details["reserved_waste"] / 5
    assert details["running"] == pytest.approx(details["expected"], rel=0.15)


def test_rows_fall_by_exactly_the_hits_and_answers_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert _told(capsys, "prefix-hits")["met"]


def test_state_machines_run_as_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    result = _told(capsys, "state-machines")
    assert result["met"], result["details"]["failures"]


def test_the_cost_of_a_miss_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    result = _told(capsys, "prefix-no-hit")
    assert 0 < result["details"]["share"] < 0.05


def test_blocks_from_disk_come_back_after_a_restart(capsys: pytest.CaptureFixture[str]) -> None:
    result = _told(capsys, "disk-tier")
    assert result["details"]["same_tokens"] and len(result["details"]["rows"]) == 3
