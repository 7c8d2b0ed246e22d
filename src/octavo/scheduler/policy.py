"""When waiting requests may join.

`Continuous`: at any step; the longest-waiting request first, and short prompts may pass a long one as far as that
does not take the blocks it needs.

Off: `scheduler.policy = "static"` makes `Static`: a batch is filled once, from the front of the queue, and runs until
its last request has finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.scheduler.state import RequestState
from octavo.scheduler.waiting import Waiting

_WINDOW = 64
"""Waiting requests that a step looks at; bounds the host's time a step."""


class Policy(Protocol):
    """Which of the waiting requests a step considers."""

    def at_once(self, waiting: Waiting, running: Sequence[RequestState]) -> list[RequestState]:
        """Requests to admit before the step's budget is shared, whether or not they get a part of it."""
        ...

    def with_budget(self, waiting: Waiting, places: int) -> list[RequestState]:
        """Requests to admit where the step has budget for them, in the order of the queue. places: that are free."""
        ...


class Continuous:
    """Requests join at every step."""

    def at_once(self, waiting: Waiting, running: Sequence[RequestState]) -> list[RequestState]:
        return []

    def with_budget(self, waiting: Waiting, places: int) -> list[RequestState]:
        return waiting.next(_WINDOW if places > 1 else 1)


class Static:
    """The null twin: a new batch only when the old one is gone."""

    def at_once(self, waiting: Waiting, running: Sequence[RequestState]) -> list[RequestState]:
        return [] if running else waiting.next(len(waiting))

    def with_budget(self, waiting: Waiting, places: int) -> list[RequestState]:
        return []


def make_policy(name: str) -> Policy:
    """The policy that the configuration asks for."""
    assert name in ("continuous", "static"), name
    return Continuous() if name == "continuous" else Static()
