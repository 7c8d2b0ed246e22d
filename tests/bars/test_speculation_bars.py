"""Short forms of the rows about speculation."""

from __future__ import annotations

import pytest

from benchmarks import rejection, speculation
from benchmarks.bars import ROWS


def test_rejection_sampling_keeps_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    result = rejection.rejection(short=True)
    with capsys.disabled():
        print("\nspeculation-rejection:", result["figure"])
    assert result["met"], result


def test_texts_are_answered_with_the_same_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    result = speculation.ngram(short=True)
    with capsys.disabled():
        print("\nspeculation-ngram:", result["figure"])
    assert result["met"], result


def test_there_are_thirty_prompts_of_each_kind_and_none_twice() -> None:
    found = [speculation.prompts(kind) for kind in speculation.KINDS]
    assert all(len(texts) >= 30 for texts in found)
    assert len({text for texts in found for text in texts}) == sum(map(len, found))
    assert {"speculation-ngram", "speculation-streams", "speculation-rejection"} <= set(ROWS)


def test_the_share_of_distinct_four_grams() -> None:
    assert speculation.distinct([1, 2, 3, 4] * 10) == pytest.approx(4 / 37)
    assert speculation.distinct(list(range(20))) == 1.0
