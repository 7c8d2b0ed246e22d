"""The n-gram proposer: the longest match wins, loops are guessed whole, its work and its memory are bounded."""

from __future__ import annotations

import random

import pytest

from octavo.speculative import ngram
from octavo.speculative.ngram import LONG, SHORT, NgramProposer
from octavo.speculative.proposer import NOTHING, Proposal, Query
from tests.support.traffic import fresh_random


def guess(tokens: list[int], most: int = 4, proposer: NgramProposer | None = None, **fields: object) -> Proposal:
    query = Query(0, tokens, most, **fields)  # type: ignore[arg-type]
    return (proposer or NgramProposer()).propose([query])[0]


def test_what_followed_is_guessed() -> None:
    assert guess([1, 2, 3, 4, 5, 6, 9, 2, 3]).tokens == (4, 5, 6, 9)
    assert guess([1, 2, 3, 4, 5, 6, 9, 2, 3], most=2).tokens == (4, 5)


def test_nothing_is_guessed_where_nothing_was_said_before() -> None:
    assert guess([1]) == NOTHING
    assert guess(list(range(50))) == NOTHING


def test_the_longest_match_wins_and_then_the_latest() -> None:
    long = [1, 2, 3, 4, 5, 6]
    assert guess([*long, 70, 9, 4, 5, 6, 80, 9, *long]).tokens[0] == 70
    assert guess([5, 6, 70, 9, 5, 6, 80, 9, 5, 6]).tokens[0] == 80


def test_longer_matches_are_better_grades() -> None:
    text = list(range(3, 40))
    grades = [guess([*text, 99, *text[:agree]]).grade for agree in (2, 5, 9, 20)]
    assert grades == [0, 1, 2, 3]


def test_a_loop_is_guessed_to_the_end_of_the_draft() -> None:
    assert guess([9, 7, 7, 7, 7], most=6).tokens == (7,) * 6
    assert guess([1, 2, 3] * 3, most=7).tokens == (1, 2, 3, 1, 2, 3, 1)


def test_an_index_that_grew_says_what_a_new_one_says() -> None:
    rng = fresh_random()
    for _ in range(20):
        tokens = [rng.randrange(6) for _ in range(rng.randint(1, 200))]
        grown = NgramProposer()
        for end in range(1, len(tokens) + 1, rng.randint(1, 5)):
            assert guess(tokens[:end], 5, grown) == guess(tokens[:end], 5)


def test_guesses_stand_in_the_text_behind_equal_tokens() -> None:
    rng = fresh_random()
    for _ in range(50):
        tokens = [rng.randrange(8) for _ in range(rng.randint(2, 120))]
        found = guess(tokens, 5)
        if found is NOTHING:
            pairs = {tuple(tokens[i : i + SHORT]) for i in range(len(tokens) - SHORT)}
            assert tuple(tokens[-SHORT:]) not in pairs
            continue
        text, agree = [*tokens, *found.tokens], 0
        for place in range(1, len(tokens)):
            if tuple(text[place : place + len(found.tokens)]) == found.tokens:
                back = 0
                while back < place and tokens[place - 1 - back] == tokens[-1 - back]:
                    back += 1
                agree = max(agree, back)
        assert agree >= SHORT


def test_ended_requests_of_the_scope_are_looked_through() -> None:
    shared = NgramProposer(shared=True)
    shared.forget(7, [1, 2, 3, 4, 5, 6, 7], "a")
    assert guess([90, 4, 5], proposer=shared, scope="a").tokens == (6, 7)
    assert guess([90, 4, 5], proposer=shared, scope="b") == NOTHING
    alone = NgramProposer()
    alone.forget(7, [1, 2, 3, 4, 5, 6, 7], "a")
    assert guess([90, 4, 5], proposer=alone, scope="a") == NOTHING


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "CORPUS_TOKENS", 100)
    monkeypatch.setattr(ngram, "MAX_SCOPES", 3)
    monkeypatch.setattr(ngram, "MOST", 250)
    proposer = NgramProposer(shared=True)
    rng = random.Random(1)
    for key in range(40):
        proposer.propose([Query(key, [rng.randrange(50) for _ in range(100)], 4, str(key % 7))])
        assert sum(index.upto for index in proposer._own.values()) <= 250
        if key >= 5:
            proposer.forget(key - 5, [rng.randrange(50) for _ in range(90)], str(key % 7))
        assert len(proposer._corpora) <= 3
        assert all(len(corpus.tokens) <= 100 for corpus in proposer._corpora.values())
    for key in range(40):
        proposer.forget(key, [], "")
    assert not proposer._own and not proposer._held


def test_a_long_text_is_taken_in_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "AT_ONCE", 10)
    proposer = NgramProposer()
    text = [1, 2, 3, 4, *range(10, 40), 2, 3]
    assert guess(text, proposer=proposer).tokens[0] == 4
    for _ in range(4):
        assert proposer._own[0].upto <= len(text)
        guess(text, proposer=proposer)
    assert proposer._own[0].upto == len(text)


def test_lengths_are_what_they_are() -> None:
    assert SHORT < LONG
