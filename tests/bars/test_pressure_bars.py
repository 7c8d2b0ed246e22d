"""The short forms of the bars of pressure. Speed is printed; what must hold on any machine is asserted."""

from __future__ import annotations

import pytest

from benchmarks import pressure
from benchmarks.bars import ROWS, verdict


def test_two_tenants_with_a_backlog_share_and_nobody_fails(capsys: pytest.CaptureFixture[str]) -> None:
    result = pressure.tenants(short=True)
    with capsys.disabled():
        print("\ntenants:", verdict(result))
    assert not result["details"]["failures"]
    assert abs(result["details"]["share"] - 0.5) < 0.25, result


def test_an_overloaded_server_refuses_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    result = pressure.overload(short=True)
    with capsys.disabled():
        print("\noverload:", verdict(result))
    assert result["details"]["refused_max"] is not None, "nobody was refused"
    assert not result["details"]["others"], result
    assert min(result["details"]["goodput"]) > 0, result


def test_no_row_of_pressure_is_lost() -> None:
    assert {"itl-target", "tenants", "overload"} <= set(ROWS)
