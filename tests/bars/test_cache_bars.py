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
