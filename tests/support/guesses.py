"""Proposers for tests: they guess right as often as a test wants, and say whatever else comes to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from octavo.speculative.proposer import Proposal, Query

Next = Callable[[int, Sequence[int]], int]
"""(request, its tokens) -> the token that truly follows."""


class Guesses:
    """Each token is right with probability `right`; a wrong one is any id below `vocab`, an end too."""

    grades = 3

    def __init__(self, rng: random.Random, follow: Next, vocab: int, right: float) -> None:
        self._rng = rng
        self._follow = follow
        self._vocab = vocab
        self._right = right
        self.asked = 0
        self.forgotten: list[int] = []

    def propose(self, queries: Sequence[Query]) -> list[Proposal]:
        self.asked += len(queries)
        return [Proposal(self._one(query), self._rng.randrange(self.grades)) for query in queries]

    def forget(self, key: int, tokens: Sequence[int], scope: str) -> None:
        self.forgotten.append(key)

    def _one(self, query: Query) -> tuple[int, ...]:
        tokens, drafts = list(query.tokens), []
        for _ in range(self._rng.randint(0, query.most)):
            right = self._rng.random() < self._right
            drafts.append(self._follow(query.key, tokens) if right else self._rng.randrange(self._vocab))
            tokens.append(drafts[-1])
        return tuple(drafts)
