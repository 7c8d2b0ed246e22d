"""The short forms of the rows about deaths, on the real model. Gaps are printed, not asserted."""

from __future__ import annotations

import pytest

from benchmarks.bars import ROWS, verdict


@pytest.mark.parametrize("name", ["kills", "poison", "orphans", "run-kills"])
def test_nothing_is_lost_when_engines_the_server_or_a_run_die(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = ROWS[name](True)
    with capsys.disabled():
        print(f"\n{name}:", verdict(result))
    assert result["met"], result
