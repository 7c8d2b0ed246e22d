"""The short forms of the rows about hostile clients and proxies, on the real model. Speed is printed, not asserted."""

from __future__ import annotations

import pytest

from benchmarks import absurd, abuse, nginx
from benchmarks.bars import ROWS, verdict
from benchmarks.skip import Skipped


def test_absurd_requests_are_refused_and_streams_beside_them_equal_their_solo_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = absurd.absurd(short=True)
    with capsys.disabled():
        print("\nabsurd:", verdict(result))
    assert not result["details"]["not_refused"], result
    assert not result["details"]["different"], result


def test_clients_that_hold_on_and_let_go_leave_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    result = abuse.abuse(short=True)
    with capsys.disabled():
        print("\nabuse:", verdict(result))
    assert result["met"], result


def test_streams_pass_nginx_while_keys_and_certificate_change(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        result = nginx.nginx(short=True)
    except Skipped as reason:
        pytest.skip(str(reason))
    with capsys.disabled():
        print("\nnginx:", verdict(result))
    assert result["met"], result


def test_no_row_about_hostile_clients_is_lost() -> None:
    assert {"absurd", "abuse", "nginx", "fuzz-detokeniser", "fuzz-stops", "fuzz-sse", "fuzz-bodies"} <= set(ROWS)
