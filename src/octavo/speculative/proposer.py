"""What guesses the next tokens of requests, as the scheduler sees it.

A proposer is chosen once, by the factory (factory.py). It may guess anything: what it says changes time and nothing
else. `NoProposer` is the null twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Query(NamedTuple):
    """One request that may get a draft."""

    key: int
    """The request, the same in every call."""
    tokens: Sequence[int]
    """All that is known, prompt first. It only ever grows; it is read during the call alone."""
    most: int
    """Longest draft of use, >= 1."""
    scope: str = ""
    """Requests of one scope may see each other's text."""


class Proposal(NamedTuple):
    """A guess."""

    tokens: tuple[int, ...] = ()
    """What follows, likeliest chain; may be empty, never longer than `Query.most`."""
    grade: int = 0
    """How good the guess seems, below `Proposer.grades`: acceptance is counted a grade."""


NOTHING = Proposal()


class Proposer(Protocol):
    """See the module."""

    grades: int
    """Kinds of guesses that are told apart."""

    def propose(self, queries: Sequence[Query]) -> list[Proposal]:
        """One guess a query, for all of a step at once."""
        ...

    def forget(self, key: int, tokens: Sequence[int], scope: str) -> None:
        """The request has ended with these tokens."""
        ...


class NoProposer:
    """Guesses nothing."""

    grades = 1

    def propose(self, queries: Sequence[Query]) -> list[Proposal]:
        return [NOTHING] * len(queries)

    def forget(self, key: int, tokens: Sequence[int], scope: str) -> None:
        return None
