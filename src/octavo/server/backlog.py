"""What was sent to the engine and has not begun to be answered: whether there is room for more is known here, at once.

Counts live in the API process, so a request that finds the queue full is refused before its body is read, whatever the
engine is doing. Two bounds: requests (`max_queue_requests`, beyond the `max_num_seqs` that may run) and prompt tokens
(`max_queue_tokens`; a request that would be alone in the queue is always taken). With `tenant_fairness` a queue that is
full still takes a tenant's request while that tenant has less than its part of the bound waiting, so nobody who fills
the queue locks others out; k tenants fill it to 1 + 1/2 + ... + 1/k of the bound at most. A refusal is 429 with
`retry-after`: the time in which those that wait will have begun, from the pace at which others began while somebody
waited. Until a pace was seen it is what computing their prompts will take by the engine's step-time model, and before
that has learnt anything, one second.

Life: `making` while a job is made; `enter` a job's requests when they are sent; `step` sees the first word of each;
`leave` when the job is over.
Off: bounds that are never reached; `max_queue_tokens = None` is the default.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from octavo.config import SchedulerConfig
from octavo.server.errors import ApiError
from octavo.types import EngineStats, NewRequest, StepOutput

_LONGEST = 60
"""Seconds of retry-after at most."""
_ENDLESS = 1 << 60
_NEWEST = 0.1
"""Weight of the newest interval between two starts."""


class Backlog:
    """See the module."""

    def __init__(self, config: SchedulerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_open = config.max_num_seqs + config.max_queue_requests
        self._most_tokens = config.max_queue_tokens
        self._queue_requests = config.max_queue_requests
        self._clock = clock
        self._fair = config.tenant_fairness
        self._waiting: dict[int, tuple[str, int]] = {}
        """Tenant and prompt tokens of each request that waits."""
        self._tenants: dict[str, tuple[int, int]] = {}
        """Requests and prompt tokens that wait, of tenants that have any."""
        self._interval: float | None = None
        """Seconds between two starts while somebody waits."""
        self._last_start: float | None = None
        """None: nobody waited after it."""
        self.tokens = 0
        """Prompt tokens that wait."""
        self._newest: EngineStats | None = None
        self._making = 0
        """Jobs whose bodies are read, and whose prompts are not tokens yet."""

    @property
    def requests(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def full(self, num_open: int) -> bool:
        """No request could be taken, however short."""
        return num_open >= self._most_open or (self._most_tokens is not None and self.tokens >= self._most_tokens)

    def check(self, num_open: int, tenant: str = "", requests: int = 0, tokens: int = 0) -> None:
        """429 where so many more requests with so many prompt tokens find no room; 0 of them: before they are known."""
        requests, tokens = max(1, requests), max(1, tokens)
        as_all_requests, as_all_tokens = self._as_all(tenant, requests, tokens)
        own_requests, own_tokens = self._tenants.get(tenant, (0, 0))
        if num_open + requests > self._most_open and as_all_requests > self._queue_requests:
            raise self._refusal("requests", "--max-queue-requests", self.requests, own_requests, self._queue_requests)
        most = self._most_tokens
        if most is not None and self.tokens and self.tokens + tokens > most and as_all_tokens > most:
            raise self._refusal("prompt tokens", "--max-queue-tokens", self.tokens, own_tokens, most)

    @contextmanager
    def making(self, num_open: int, tenant: str = "") -> Iterator[None]:
        """A body was read and its job is made meanwhile: 429 at once where those that are being made fill the room.

        So a refusal never waits for the templates and tokenisers of a crowd.
        """
        self.check(num_open + self._making, tenant)
        self._making += 1
        try:
            yield
        finally:
            self._making -= 1

    def enter(self, requests: Sequence[NewRequest]) -> None:
        """A job was sent. The further choices of a prompt find it computed."""
        for request in requests:
            count = len(request.prompt) if request.choice == 0 else 1
            self._waiting[request.request_id] = (request.tenant, count)
            self._add(request.tenant, 1, count)

    def step(self, output: StepOutput) -> None:
        """What the engine says: who is heard of first has begun."""
        self._newest = output.stats
        for delta in output.deltas:
            if delta.request_id in self._waiting:
                self._forget(delta.request_id)
                self._started()

    def leave(self, requests: Sequence[NewRequest]) -> None:
        """A job is over."""
        for request in requests:
            self._forget(request.request_id)

    def retry_after(self) -> int:
        """Seconds in which those that wait now will have begun."""
        wait = self._prompt_seconds() if self._interval is None else self.requests * self._interval
        return max(1, min(_LONGEST, math.ceil(wait)))

    def _forget(self, request_id: int) -> None:
        tenant, count = self._waiting.pop(request_id, ("", 0))
        if count:
            self._add(tenant, -1, -count)

    def _add(self, tenant: str, requests: int, tokens: int) -> None:
        self.tokens += tokens
        before = self._tenants.get(tenant, (0, 0))
        now = (before[0] + requests, before[1] + tokens)
        if now[0]:
            self._tenants[tenant] = now
        else:
            del self._tenants[tenant]

    def _as_all(self, tenant: str, requests: int, tokens: int) -> tuple[int, int]:
        """What the queue would hold if every tenant had as much waiting as this one with so much more."""
        count = len(self._tenants) + (tenant not in self._tenants)
        if not self._fair or count == 1:
            return _ENDLESS, _ENDLESS
        own_requests, own_tokens = self._tenants.get(tenant, (0, 0))
        return (own_requests + requests) * count, (own_tokens + tokens) * count

    def _started(self) -> None:
        now = self._clock()
        if self._last_start is not None:
            interval = now - self._last_start
            before = interval if self._interval is None else self._interval
            self._interval = before + _NEWEST * (interval - before)
        self._last_start = now if self._waiting else None

    def _prompt_seconds(self) -> float:
        """What the prompts that wait will take to compute, as the engine has learnt; 0 before it has."""
        newest = self._newest
        if newest is None:
            return 0.0
        steps = -(-self.tokens // max(1, newest.step_budget))
        return steps * newest.step_prices[0] + self.tokens * newest.step_prices[1]

    def _refusal(self, what: str, flag: str, waiting: int, own: int, most: int) -> ApiError:
        """what: is counted. own: of the tenant, whose part is the bound divided by the tenants that wait."""
        seconds = self.retry_after()
        if self._fair and len(self._tenants) > 1:
            said = f"Your part of the queue is taken: {own} of its {waiting} {what} are yours, {len(self._tenants)} "
            said += f"tenants wait, and {flag} is {most}"
        else:
            said = f"The queue is full: {waiting} {what} wait, and {flag} is {most}"
        return ApiError(
            f"{said}; try again in {seconds} s.",
            status=429,
            code="queue_full",
            retry_after=seconds,
        )
