"""Clocks on requests: a deadline that a request brought along, and the longest time in the queue.

Life: `watch` when a request is added; every plan asks `expired` for those whose time is over, and the scheduler ends
them with an error that names the limit. A deadline ends a request wherever it stands; the queue's limit ends it only
before its first admission, so neither a preempted request nor one that is sent again with its answer is ended by it.
Requests that ended otherwise are skipped. Deadlines come as Unix time and are turned into this process's monotonic
clock once, so a clock that is set harms nobody who is here already.

Off: requests without `deadline`, and `scheduler.max_queue_seconds = None`; then nothing is ever looked at.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.scheduler.state import RequestState, Status
from octavo.types import ErrorCode


@dataclass(frozen=True, slots=True)
class Expired:
    """A request whose time is over, and what to tell its sender."""

    request: RequestState
    code: ErrorCode
    error: str


class TimeLimits:
    """A heap of moments; `clock` is monotonic, `wall` is Unix time."""

    def __init__(
        self,
        max_queue_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._max_queue = max_queue_seconds
        self._clock = clock
        self._wall = wall
        self._heap: list[tuple[float, int, ErrorCode, RequestState]] = []
        self._count = 0

    def watch(self, request: RequestState) -> None:
        """The request has arrived."""
        deadline = request.request.deadline
        if deadline is not None:
            self._push(self._clock() + deadline - self._wall(), ErrorCode.DEADLINE, request)
        if self._max_queue is not None and not request.num_generated:
            self._push(self._clock() + self._max_queue, ErrorCode.QUEUE_TIMEOUT, request)

    def expired(self) -> list[Expired]:
        """Requests that are over by now, each once."""
        if not self._heap:
            return []
        now = self._clock()
        over: dict[RequestState, Expired] = {}
        while self._heap and self._heap[0][0] <= now:
            _, _, code, request = heapq.heappop(self._heap)
            if request.status is Status.FINISHED or request in over:
                continue
            if code is ErrorCode.DEADLINE:
                over[request] = Expired(request, code, self._too_late(request))
            elif request.status is Status.WAITING:
                over[request] = Expired(request, code, self._waited(request))
        return list(over.values())

    def _push(self, moment: float, code: ErrorCode, request: RequestState) -> None:
        self._count += 1
        heapq.heappush(self._heap, (moment, self._count, code, request))

    def _too_late(self, request: RequestState) -> str:
        return (
            f"The request's deadline passed after {request.num_generated} of at most "
            f"{request.max_total - request.num_prompt} tokens; a longer deadline_ms or a smaller max_tokens would work."
        )

    def _waited(self, request: RequestState) -> str:
        return (
            f"The request waited in the queue for the {self._max_queue:g} s that --max-queue-seconds allows; "
            "send it again later."
        )
