"""Rejection sampling of drafts (Leviathan et al. 2023, Chen et al. 2023): the distribution stays, the tokens may not.

A guess x that was drawn from q is accepted with probability min(1, p(x) / q(x)); otherwise the token is drawn from
what of p lies above q. A guess without a distribution (an n-gram's) has all of q on itself: it is accepted with
probability p(x), and the token is otherwise any other, in proportion to p.

The numbers drawn are keyed as the sampler's are, by (seed, position, choice): whether a guess is accepted by counter
word 3 = 1, what is drawn instead by the noise of the target's own draw, which decides nothing else at this position.
So an answer is repeatable where its drafts are. Off, and the default: `SpeculativeConfig.verification = "coupled"`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.ops.reference.sampler import philox

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
_COIN = 0xFFFFFFFF


class Place(NamedTuple):
    """What the numbers drawn are keyed by."""

    seed: int
    position: int
    choice: int


class Target(NamedTuple):
    """The target's distribution: the ids that may be drawn, ascending, and their probabilities."""

    ids: I64
    p: F64


def target_of(z: npt.NDArray[np.float32]) -> Target:
    """From processed logits; -inf cannot be drawn."""
    ids = np.flatnonzero(np.isfinite(z))
    weights = np.exp(z[ids].astype(np.float64) - float(z[ids].max()))
    return Target(ids, weights / weights.sum())


def judge(target: Target, guess: int, place: Place, q: F64 | None = None) -> tuple[int, bool]:
    """The token at a place, and whether it is the guess, accepted.

    q: the guess's distribution over `target.ids`; None: all on the guess.
    """
    ids, p = target
    at = int(np.searchsorted(ids, guess))
    possible = at < len(ids) and int(ids[at]) == guess
    mass = float(p[at]) if possible else 0.0
    asked = 1.0 if q is None else float(q[at]) if possible else 0.0
    if mass > 0 and _coin(place) * asked < mass:
        return guess, True
    if q is not None:
        rest = np.maximum(p - q, 0.0)
    else:
        rest = p.copy()
        if possible:
            rest[at] = 0.0
    if not rest.any():  # rounding alone: p lies nowhere above q
        rest = p
    return int(ids[_pick(rest, ids, place)]), False


def _coin(place: Place) -> float:
    """Uniform in (0, 1)."""
    counter = np.array([[_COIN, place.position, place.choice, 1]], np.uint64)
    return (float(philox(place.seed, counter)[0, 0]) + 0.5) * 2.0**-32


def _pick(weights: F64, ids: I64, place: Place) -> int:
    """An index in proportion to the weights: the greatest log weight - log E, E exponential noise of the ids."""
    counters = np.zeros((len(ids), 4), np.uint64)
    counters[:, 0] = ids // 4
    counters[:, 1] = place.position
    counters[:, 2] = place.choice
    words = philox(place.seed, counters)[np.arange(len(ids)), ids % 4]
    fraction = np.minimum((words.astype(np.float64) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(weights) - np.log(-np.log1p(-fraction))))
