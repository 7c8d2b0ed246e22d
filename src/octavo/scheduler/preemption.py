"""Who gives up pages when there are too few, and what a preempted request keeps.

A running request that needs a block takes it from a victim: the request of the lowest priority, the youngest among
those, which may be the needy one itself. Spared are requests that have generated nothing since they came back, and
those preempted as often as is allowed (see admission.py for why someone else can then go). A pool that holds every
request never preempts.

Partial preemption (`Tails`): a victim stops, but keeps the full blocks at its beginning that are computed; from then on
its blocks are anybody's, one at a time from its end, for those that run and for the first of the queue. It goes on
behind what is left. Where a window group no longer holds what a shorter beginning needs, all of it goes. Off:
`scheduler.partial_preemption = False` makes `Whole`: a victim keeps nothing, but what the prefix cache still finds.

`ByPriority` (`scheduler.order = "priority"`): a request that cannot enter may send running ones away whose priority is
lower, of its own tenant alone, for fairness decides between tenants. Off: "fcfs" makes `Nobody`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.config import SchedulerConfig
from octavo.kvcache.manager import KVManager
from octavo.scheduler.admission import MAX_PREEMPTIONS
from octavo.scheduler.state import RequestState


def choose_victim(needy: RequestState, running: Sequence[RequestState]) -> RequestState | None:
    """The request that goes, or None: `needy` waits until another has generated something."""
    candidates: list[RequestState] = []
    recovering = False
    for request in running:
        if request.preemptions >= MAX_PREEMPTIONS:
            continue
        if _recovering(request):
            recovering = True
        else:
            candidates.append(request)
    if recovering and (not candidates or candidates == [needy]):
        return None
    assert candidates, "requests preempted twice were admitted only where all of them fit to their end"
    return max(candidates, key=_least)


class Urgency(Protocol):
    """Whom a waiting request may send away."""

    def victims(self, request: RequestState, running: Sequence[RequestState]) -> list[RequestState]:
        """The least important first."""
        ...


class Nobody:
    """The null twin."""

    def victims(self, request: RequestState, running: Sequence[RequestState]) -> list[RequestState]:
        return []


class ByPriority:
    """See the module. Those that would stand before the request in the queue are spared: it could not pass them."""

    def victims(self, request: RequestState, running: Sequence[RequestState]) -> list[RequestState]:
        tenant = request.request.tenant
        found = [
            other
            for other in running
            if other.priority > request.priority
            and other.order > request.order
            and other.preemptions < MAX_PREEMPTIONS
            and not _recovering(other)
            and other.request.tenant == tenant
        ]
        return sorted(found, key=_least, reverse=True)


class Keeping(Protocol):
    """What preempted requests still hold."""

    def keep(self, victim: RequestState) -> None:
        """The victim stops: frees what it does not keep."""
        ...

    def forget(self, request: RequestState) -> None:
        """It runs again, or has ended."""
        ...

    def held(self, but: RequestState) -> int:
        """Blocks that all others hold."""
        ...

    def take(self, but: RequestState) -> bool:
        """Frees a block of the least important other one; False where nobody has any."""
        ...


class Whole:
    """The null twin: everything is given back."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv

    def keep(self, victim: RequestState) -> None:
        self._kv.release(victim.kv)

    def forget(self, request: RequestState) -> None:
        return None

    def held(self, but: RequestState) -> int:
        return 0

    def take(self, but: RequestState) -> bool:
        return False


class Tails:
    """See the module."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._holders: list[RequestState] = []

    def keep(self, victim: RequestState) -> None:
        computed = min(victim.num_computed, victim.computed_once)
        self._kv.trim(victim.kv, computed // self._kv.block_size)
        if victim.kv.num_blocks:
            self._holders.append(victim)

    def forget(self, request: RequestState) -> None:
        if request in self._holders:
            self._holders.remove(request)

    def held(self, but: RequestState) -> int:
        return sum(request.kv.num_blocks for request in self._holders if request is not but)

    def take(self, but: RequestState) -> bool:
        victim = max((request for request in self._holders if request is not but), key=_least, default=None)
        if victim is None:
            return False
        self._kv.trim(victim.kv, victim.kv.num_blocks - 1)
        if not victim.kv.num_blocks:
            self._holders.remove(victim)
        return True


def make_urgency(config: SchedulerConfig) -> Urgency:
    """Who may send whom away, as configured."""
    return ByPriority() if config.order == "priority" else Nobody()


def make_keeping(config: SchedulerConfig, kv: KVManager) -> Keeping:
    """What a preempted request keeps, as configured."""
    return Tails(kv) if config.partial_preemption else Whole(kv)


def _recovering(request: RequestState) -> bool:
    return bool(request.preemptions) and not request.progressed


def _least(request: RequestState) -> tuple[int, tuple[int, int]]:
    """Of the lowest priority, then the youngest."""
    return request.priority, request.order
