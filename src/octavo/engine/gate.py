"""Requests whose structure is being looked at: they enter the scheduler when it can be had, or are refused.

Owns those requests. A structure is compiled in another process (structure/), so nobody else waits for it. Each
request that enters comes out once: ready, refused, or taken out by its id. Off switch: `structured_outputs`; then
requests with a structure are refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.structure.protocol import NoMasker, Structures
from octavo.types import ErrorCode, NewRequest

OFF = "Structured outputs are switched off; start without --no-structured-outputs."


@dataclass(frozen=True)
class Looked:
    """What became of a request."""

    request: NewRequest
    error: str | None
    code: ErrorCode | None = None


class StructureGate:
    """See the module."""

    def __init__(self, structures: Structures | None) -> None:
        """structures: None where they are switched off."""
        self.on = structures is not None
        self._structures: Structures = structures or NoMasker()
        self._waiting: dict[int, NewRequest] = {}
        """By ticket."""

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, request: NewRequest) -> None:
        """The request waits for its structure."""
        assert request.params.structure is not None
        self._waiting[self._structures.compile(request.params.structure)] = request

    def holds(self, request_id: int) -> bool:
        """A request of this id waits here."""
        return any(request.request_id == request_id for request in self._waiting.values())

    def take_out(self, request_id: int) -> bool:
        """The request has ended; False where it is not here."""
        for ticket, request in self._waiting.items():
            if request.request_id == request_id:
                del self._waiting[ticket]
                return True
        return False

    def everybody(self) -> list[int]:
        """The ids of all that wait here."""
        return [request.request_id for request in self._waiting.values()]

    def looked(self) -> list[Looked]:
        """Those whose structure was looked at since the last call."""
        if not self._structures.pending:
            return []
        done = []
        for ticket, error in self._structures.compiled():
            request = self._waiting.pop(ticket, None)
            if request is not None:
                refused = None if error is None else f"The structure cannot be had: {error}."
                done.append(Looked(request, refused, None if error is None else ErrorCode.BAD_STRUCTURE))
        return done

    def wait(self, seconds: float) -> None:
        """Returns when a structure may have been looked at."""
        self._structures.wait(seconds)
