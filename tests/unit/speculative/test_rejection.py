"""Rejection sampling leaves the distribution as it is; verifiers that are wrong are found out."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
import pytest

from octavo.ops.reference.sampler import ReferenceSample, shaped
from octavo.speculative import rejection
from octavo.speculative.rejection import Place, Target, judge, target_of
from tests.support.chi import chi_square

DRAWS = 10_000
"""`benchmarks` draws five times as many."""
CHANCE = 1e-5
"""Of a failure without a fault; the row `speculation-rejection` asks for 0.001."""
Judge = Callable[..., tuple[int, bool]]


def toy() -> Target:
    logits = np.array([2.0, 1.5, 1.4, 0.3, 0.0, -0.5, -2.0, 0.9, 1.1], np.float32)
    return target_of(shaped(logits, ReferenceSample(0.8, 7, 0.95, 0.0, 0, 0, -1)))


def seen(judge_one: Judge, target: Target, guess: int | None, q: np.ndarray | None = None) -> float:
    """The p-value of the draws. guess: None draws it from q."""
    first = secrets.randbits(62)
    print("seed", first)
    rng = np.random.default_rng(first)
    counts = dict.fromkeys(target.ids.tolist(), 0)
    for number in range(DRAWS):
        guessed = int(rng.choice(target.ids, p=q)) if guess is None else guess
        token, accepted = judge_one(target, guessed, Place(first + number, 7, 0), q)
        assert accepted == (token == guessed) or q is not None
        counts[token] += 1
    return chi_square(list(counts.values()), target.p.tolist())


@pytest.mark.parametrize("guess", [0, 2, 3, 6, 8])
def test_a_guess_of_an_ngram(guess: int) -> None:
    """Likely, unlikely and impossible guesses (6 is cut by top-k)."""
    assert seen(judge, toy(), guess) > CHANCE


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 3.0])
def test_a_guess_of_a_draft_model(sharpness: float) -> None:
    target = toy()
    q = target.p**sharpness
    assert seen(judge, target, None, q / q.sum()) > CHANCE


def _always(target: Target, guess: int, place: Place, q: np.ndarray | None) -> tuple[int, bool]:
    return guess, True


def _from_all(target: Target, guess: int, place: Place, q: np.ndarray | None) -> tuple[int, bool]:
    """The classic mistake: after a refusal the token is drawn from p, not from what is left of it."""
    token, accepted = judge(target, guess, place, q)
    if accepted:
        return token, True
    return int(target.ids[rejection._pick(target.p, target.ids, place)]), False


def _one_coin(target: Target, guess: int, place: Place, q: np.ndarray | None) -> tuple[int, bool]:
    """Coins that are a little unfair."""
    token, accepted = judge(target, guess, place, q)
    if accepted and place.seed % 12 == 0:
        return judge(Target(target.ids, np.where(target.ids == guess, 0.0, target.p)), guess, place, q)
    return token, accepted


@pytest.mark.parametrize("broken", [_always, _from_all, _one_coin])
def test_broken_verifiers_are_caught(broken: Judge) -> None:
    target = toy()
    counts = dict.fromkeys(target.ids.tolist(), 0)
    for number in range(DRAWS):
        counts[broken(target, 0, Place(number, 7, 0), None)[0]] += 1
    assert chi_square(list(counts.values()), target.p.tolist()) < 1e-5


def test_it_accepts_as_often_as_the_guess_is_likely() -> None:
    target = toy()
    taken = sum(judge(target, 0, Place(number, 3, 1))[1] for number in range(DRAWS))
    assert taken / DRAWS == pytest.approx(float(target.p[0]), abs=0.02)
