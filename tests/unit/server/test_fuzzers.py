"""The short form of `make fuzz`: some hundred new cases of each fuzzer, and seeds that once were interesting."""

from __future__ import annotations

import pytest

from benchmarks import fuzzers


@pytest.mark.parametrize("name", fuzzers.CASES)
def test_a_few_hundred_new_cases_find_nothing(name: str) -> None:
    result = fuzzers.run(name, seconds=20.0, cases=400)
    assert result["met"], result["details"]
    assert result["figure"].startswith("400 cases")


@pytest.mark.parametrize("name", fuzzers.CASES)
def test_kept_seeds_find_nothing(name: str) -> None:
    for number in range(100):
        fuzzers.case(name, number)


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop matcher that never holds back is caught at once."""
    monkeypatch.setattr("octavo.server.stops.StopMatcher._prefix_length", lambda self, text: 0)
    assert not fuzzers.run("stops", seconds=20.0, cases=400)["met"]
