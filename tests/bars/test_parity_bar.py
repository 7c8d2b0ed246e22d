"""The short form of the row that compares streamed and whole answers: a draw of its cells, on a tiny model."""

from __future__ import annotations

import pytest

from benchmarks.bars import verdict
from benchmarks.parity import parity


def test_streams_join_to_the_answers_that_are_not_streamed(capsys: pytest.CaptureFixture[str]) -> None:
    result = parity(short=True)
    with capsys.disabled():
        print("\nparity:", verdict(result), "seed", result["details"]["seed"])
    assert result["met"], result
