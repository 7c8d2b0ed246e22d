"""The waiting requests, and in which order they are served.

`InOrder`: by age, where one step of priority counts as much as `PRIORITY_WORTH` arrivals (state.py).

`FairShare` (`scheduler.tenant_fairness`): virtual token counters (Sheng et al., "Fairness in Serving Large Language
Models", 2024). Each tenant has a counter of the work it was given: its prompts' tokens that were not cached, when a
request is first admitted, and `output_weight` times its generated tokens, as they come. The next request is the oldest
of the waiting tenant with the least counter. A tenant that begins to wait is lifted to the least counter of those that
wait (or of the last that did), so nobody saves up a claim by being idle. So of tenants that always have something
waiting, none gets further ahead of another than about the work that runs at once. Priorities order the requests of one
tenant. With one tenant this is `InOrder`.

Off: `scheduler.tenant_fairness = False` makes `InOrder`, the null twin.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from octavo.config import SchedulerConfig
from octavo.scheduler.state import RequestState, Status

MAX_TENANTS = 1024
"""Counters of tenants with nobody waiting that are kept at most."""


class Waiting(Protocol):
    """See the module. Iteration is in order of age."""

    tokens: int
    """Of all that wait."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[RequestState]: ...

    def add(self, request: RequestState) -> None:
        """It begins to wait, or waits again."""
        ...

    def remove(self, request: RequestState) -> None:
        """It was admitted, or has ended."""
        ...

    def crowd(self, tenant: str) -> int:
        """Requests that wait, as a request of this tenant counts them against the queue's bound."""
        ...

    def first(self) -> RequestState:
        """Who is served next."""
        ...

    def next(self, limit: int) -> list[RequestState]:
        """Who is served next, in order."""
        ...

    def rank(self, request: RequestState) -> float:
        """Prompts of a lower rank come first, whatever their length; for running requests too."""
        ...

    def charge(self, request: RequestState, prompt: int, generated: int) -> None:
        """The request was given this much."""
        ...


class InOrder:
    """Oldest first."""

    def __init__(self) -> None:
        self._queue: list[RequestState] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._queue)

    def add(self, request: RequestState) -> None:
        insort(self._queue, request, key=by_age)
        self.tokens += len(request.tokens)

    def remove(self, request: RequestState) -> None:
        take_out(self._queue, request)
        self.tokens -= len(request.tokens)

    def crowd(self, tenant: str) -> int:
        return len(self._queue)

    def first(self) -> RequestState:
        return self._queue[0]

    def next(self, limit: int) -> list[RequestState]:
        return self._queue[:limit]

    def rank(self, request: RequestState) -> float:
        return request.priority

    def charge(self, request: RequestState, prompt: int, generated: int) -> None:
        return None


class FairShare(InOrder):
    """See the module."""

    def __init__(self, output_weight: float) -> None:
        super().__init__()
        self._weight = output_weight
        self._counters: dict[str, float] = {}
        self._tenants: dict[str, list[RequestState]] = {}
        """Those that wait, by tenant; no list is empty."""
        self._last = 0.0
        """Counter of the tenant that was the last to have somebody waiting."""

    def add(self, request: RequestState) -> None:
        super().add(request)
        tenant = request.request.tenant
        queue = self._tenants.get(tenant)
        if queue is None:
            if request.status is Status.WAITING:
                self._lift(tenant)
            queue = self._tenants[tenant] = []
        insort(queue, request, key=by_age)

    def remove(self, request: RequestState) -> None:
        super().remove(request)
        tenant = request.request.tenant
        queue = self._tenants[tenant]
        take_out(queue, request)
        if not queue:
            del self._tenants[tenant]
            self._last = self._counters.get(tenant, 0.0)

    def crowd(self, tenant: str) -> int:
        """As many as there would be if every tenant had as many waiting as this one then, but not more than there are.

        So a tenant with less than its part of a full queue may still come in.
        """
        own = self._tenants.get(tenant)
        count = len(self._tenants) + (own is None)
        return min(len(self._queue), count * (len(own or ()) + 1) - 1)

    def first(self) -> RequestState:
        if len(self._tenants) == 1:
            return self._queue[0]
        return min(self._tenants.items(), key=lambda item: (self._counters.get(item[0], 0.0), by_age(item[1][0])))[1][0]

    def next(self, limit: int) -> list[RequestState]:
        """As if each were charged for its prompt when it is taken."""
        if len(self._tenants) <= 1:
            return self._queue[:limit]
        heap = [
            (self._counters.get(tenant, 0.0), by_age(queue[0]), tenant, 0) for tenant, queue in self._tenants.items()
        ]
        heapq.heapify(heap)
        found: list[RequestState] = []
        while heap and len(found) < limit:
            counter, _, tenant, index = heapq.heappop(heap)
            queue = self._tenants[tenant]
            found.append(queue[index])
            if index + 1 < len(queue):
                counter += len(queue[index].tokens)
                heapq.heappush(heap, (counter, by_age(queue[index + 1]), tenant, index + 1))
        return found

    def rank(self, request: RequestState) -> float:
        return self._counters.get(request.request.tenant, 0.0)

    def charge(self, request: RequestState, prompt: int, generated: int) -> None:
        tenant = request.request.tenant
        self._counters[tenant] = self._counters.get(tenant, 0.0) + prompt + self._weight * generated

    def _lift(self, tenant: str) -> None:
        least = min((self._counters.get(other, 0.0) for other in self._tenants), default=self._last)
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), least)
        if len(self._counters) > MAX_TENANTS + len(self._tenants):
            self._forget(tenant)

    def _forget(self, arriving: str) -> None:
        """Drops the least counters of tenants with nobody waiting: they would be lifted most when they come back."""
        idle = [name for name in self._counters if name not in self._tenants and name != arriving]
        idle.sort(key=self._counters.__getitem__)
        for name in islice(idle, len(idle) - MAX_TENANTS // 2):
            del self._counters[name]


def make_waiting(config: SchedulerConfig) -> Waiting:
    """The queue that the configuration asks for."""
    return FairShare(config.output_weight) if config.tenant_fairness else InOrder()


def by_age(request: RequestState) -> tuple[int, int]:
    """The key of queues in order of age."""
    return request.order


def take_out(queue: list[RequestState], request: RequestState) -> None:
    """Removes from a queue in order of age."""
    index = bisect_left(queue, request.order, key=by_age)
    assert queue[index] is request
    del queue[index]
