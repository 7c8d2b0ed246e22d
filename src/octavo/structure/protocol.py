"""What the engine's core needs of structured outputs: whether a structure can be had. Owns nothing; loads nothing.

Off switch: `structured_outputs` makes `NoMasker`.
"""

from __future__ import annotations

from typing import Protocol

from octavo.types import Structure


class Structures(Protocol):
    """What the engine's core needs: whether a structure can be had."""

    @property
    def pending(self) -> bool:
        """Some answers are still to come."""
        ...

    def compile(self, structure: Structure) -> int:
        """Asks; the ticket comes back in `compiled`."""
        ...

    def compiled(self) -> list[tuple[int, str | None]]:
        """Tickets that have an answer now: None, or why the structure cannot be had (a clause)."""
        ...

    def wait(self, seconds: float) -> None:
        """Returns when there may be something new, or after so long."""
        ...


class NoMasker:
    """The null twin: nothing can be had."""

    pending = False

    def compile(self, structure: Structure) -> int:
        raise AssertionError("requests with structures are refused before")

    def compiled(self) -> list[tuple[int, str | None]]:
        return []

    def wait(self, seconds: float) -> None:
        return None
