"""What was sent to the engine and has not begun to be answered: whether there is room for more is known here, at once.

Counts live in the API process, so a request that finds the queue full is refused before its body is read, whatever the
engine is doing. Two bounds: requests (`max_queue_requests`, beyond the `max_num_seqs` that may run) and prompt tokens
(`max_queue_tokens`; a request that would be alone in the queue is always taken). A refusal is 429 with `retry-after`:
the time in which those that wait will have begun, from the pace at which others began while somebody waited.

Life: `enter` a job's requests when they are sent; `step` sees the first word of each; `leave` when the job is over.
Off: bounds that are never reached; `max_queue_tokens = None` is the default.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from octavo.config import SchedulerConfig
from octavo.server.errors import ApiError
from octavo.types import NewRequest, StepOutput

_LONGEST = 60
"""Seconds of retry-after at most."""
_NEWEST = 0.1
"""Weight of the newest interval between two starts."""


class Backlog:
    """See the module."""

    def __init__(self, config: SchedulerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_open = config.max_num_seqs + config.max_queue_requests
        self._most_tokens = config.max_queue_tokens
        self._queue_requests = config.max_queue_requests
        self._clock = clock
        self._tokens_of: dict[int, int] = {}
        self._interval: float | None = None
        """Seconds between two starts while somebody waits."""
        self._last_start: float | None = None
        """None: nobody waited after it."""
        self.tokens = 0
        """Prompt tokens that wait."""

    @property
    def requests(self) -> int:
        """Requests that wait."""
        return len(self._tokens_of)

    def full(self, num_open: int) -> bool:
        """No request could be taken, however short."""
        return num_open >= self._most_open or (self._most_tokens is not None and self.tokens >= self._most_tokens)

    def check(self, num_open: int, requests: int = 0, tokens: int = 0) -> None:
        """429 where so many more requests with so many prompt tokens find no room; 0 of them: before they are known."""
        if num_open + max(1, requests) > self._most_open:
            raise self._refusal(f"{self.requests} requests wait, and --max-queue-requests is {self._queue_requests}")
        if self._most_tokens is not None and self.tokens and self.tokens + max(1, tokens) > self._most_tokens:
            raise self._refusal(f"{self.tokens} prompt tokens wait, and --max-queue-tokens is {self._most_tokens}")

    def enter(self, requests: Sequence[NewRequest]) -> None:
        """A job was sent. The further choices of a prompt find it computed."""
        for request in requests:
            count = len(request.prompt) if request.choice == 0 else 1
            self._tokens_of[request.request_id] = count
            self.tokens += count

    def step(self, output: StepOutput) -> None:
        """What the engine says: who is heard of first has begun."""
        for delta in output.deltas:
            if delta.request_id in self._tokens_of:
                self._forget(delta.request_id)
                self._started()

    def leave(self, requests: Sequence[NewRequest]) -> None:
        """A job is over."""
        for request in requests:
            self._forget(request.request_id)

    def retry_after(self) -> int:
        """Seconds in which those that wait now will have begun."""
        wait = self.requests * (self._interval or 0.0)
        return max(1, min(_LONGEST, math.ceil(wait)))

    def _forget(self, request_id: int) -> None:
        self.tokens -= self._tokens_of.pop(request_id, 0)

    def _started(self) -> None:
        now = self._clock()
        if self._last_start is not None:
            interval = now - self._last_start
            before = interval if self._interval is None else self._interval
            self._interval = before + _NEWEST * (interval - before)
        self._last_start = now if self._tokens_of else None

    def _refusal(self, what: str) -> ApiError:
        seconds = self.retry_after()
        return ApiError(
            f"The queue is full: {what}; try again in {seconds} s.",
            status=429,
            code="queue_full",
            retry_after=seconds,
        )
