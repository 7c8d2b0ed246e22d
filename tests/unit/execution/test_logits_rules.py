"""Rules of what may come next: each against its definition, joined in any number, asked in any order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.execution.logits_rules import (
    FREE,
    NO_RULES,
    BadWords,
    EndsNotBefore,
    OnlyThese,
    Restriction,
    Rule,
    join,
)

VOCAB = 40
IDS = st.integers(0, VOCAB - 1)
SMALL = st.integers(0, 3)


def allowed(restriction: Restriction) -> set[int]:
    """The ids that may be drawn."""
    ids = set(range(VOCAB))
    if restriction.mask is not None:
        bits = np.unpackbits(restriction.mask.view(np.uint8), bitorder="little")
        ids = {i for i in ids if bits[i]}
    return ids if restriction.banned is None else ids - set(restriction.banned.tolist())


def completes(tokens: list[int], num_prompt: int, words: list[list[int]]) -> set[int]:
    """Ids that would end the output with one of the words."""
    output = tokens[num_prompt:]
    return {i for i in range(VOCAB) for word in words if [*output, i][-len(word) :] == word}


@given(
    st.lists(st.lists(SMALL, min_size=1, max_size=4), max_size=6), st.lists(SMALL, min_size=1, max_size=12), st.data()
)
def test_bad_words_forbid_what_would_complete_one(
    words: list[list[int]], tokens: list[int], data: st.DataObject
) -> None:
    num_prompt = data.draw(st.integers(1, len(tokens)))
    rule = BadWords(words, num_prompt)
    lengths = list(range(num_prompt, len(tokens) + 1))
    random.Random(data.draw(st.integers(0, 99))).shuffle(lengths)
    for length in lengths:
        expected = set(range(VOCAB)) - completes(tokens[:length], num_prompt, words)
        assert allowed(rule.at(tokens[:length])) == expected


@given(st.lists(IDS), st.lists(IDS), st.lists(st.lists(IDS, min_size=1, max_size=1)), st.integers(0, 9))
def test_joined_rules_forbid_what_any_forbids(
    ends: list[int], these: list[int], words: list[list[int]], length: int
) -> None:
    rules: list[Rule] = [EndsNotBefore(ends, 5), OnlyThese(these, VOCAB), BadWords(words, 1)]
    tokens = [0] * (length + 1)
    parts = [allowed(rule.at(tokens)) for rule in rules]
    joined = join(rules)
    assert allowed(joined.at(tokens)) == parts[0] & parts[1] & parts[2]
    assert joined.at(tokens) is joined.at(list(tokens)), "the same answer is the same object"
    assert joined.causes(tokens) == [rule.field for rule in rules if rule.at(tokens) is not FREE]


def test_ids_that_end_are_free_from_the_length_on() -> None:
    rule = join([EndsNotBefore([2, 7], 4)])
    assert [sorted(set(range(VOCAB)) - allowed(rule.at([1] * length))) for length in (3, 4, 3)] == [[2, 7], [], [2, 7]]


@pytest.mark.parametrize("length", [1, 5])
def test_without_rules_everything_is_free(length: int) -> None:
    assert join([]) is NO_RULES and NO_RULES.at([0] * length) is FREE and NO_RULES.causes([0]) == []
