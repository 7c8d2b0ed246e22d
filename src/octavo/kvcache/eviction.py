"""Which idle block goes first: what an entry is worth, and the queue of those that may go.

Evicting a block costs what computing it again would, if somebody asks for it again. Both are told from what is known:
a block that was found before is likely to be found again, and a position costs the more the further behind it lies,
for attention reads all that is before it. `CostRecency` therefore adds to the time of last use a bonus that grows with
hits and position; `Recency` is plain LRU. Time is counted in blocks that entered the cache, so a bonus of one pool
lets an entry outlive one whole turnover of the pool.

Only leaves may go, so that no entry is left that cannot be reached: `IdleLeaves` holds the idle entries without
children. A value is set when an entry goes idle and stays; an entry whose last child goes is queued with its own.

Off: `kv.eviction = "lru"`.
"""

from __future__ import annotations

import heapq
from typing import Protocol

HIT_TURNOVERS = 0.4
"""Turnovers of the pool by which each hit lengthens an entry's life."""
MOST_HITS = 2
"""Hits that count."""
COST_POSITIONS = 4096
"""Positions after which a token costs twice what the first does: attention has then caught up with the products."""


class Retention(Protocol):
    """What an idle entry is worth: the least goes first."""

    def __call__(self, clock: int, hits: int, position: int) -> float:
        """clock: blocks that have entered the cache so far. hits: requests that found it. position: its first."""
        ...


class Recency:
    """Least recently used first: all entries are worth the same, and the queue keeps the order of use."""

    def __call__(self, clock: int, hits: int, position: int) -> float:
        return 0.0


class CostRecency:
    """See the module."""

    __slots__ = ("_bonus",)

    def __init__(self, total: int) -> None:
        """total: blocks of the pool."""
        self._bonus = HIT_TURNOVERS * total

    def __call__(self, clock: int, hits: int, position: int) -> float:
        if not hits:
            return clock
        return clock + self._bonus * min(hits, MOST_HITS) * (1 + position / COST_POSITIONS)


def make_retention(name: str, total: int) -> Retention:
    """The policy that the configuration names."""
    if name == "lru":
        return Recency()
    assert name == "cost", name
    return CostRecency(total)


class Evictable:
    """The part of a cache entry that the queue needs."""

    __slots__ = ("queued", "ticket", "value")

    def __init__(self) -> None:
        self.value = 0.0
        """Set when the entry goes idle."""
        self.ticket = 0
        """Grows with every entry that goes idle: smaller is longer ago."""
        self.queued = 0
        """Number of the queue's item that stands for the entry; 0: none does."""


class IdleLeaves:
    """A queue by value, then by age. Items of entries that have left stay in it until they come up or it is rebuilt."""

    __slots__ = ("_count", "_items", "_next")

    def __init__(self) -> None:
        self._items: list[tuple[float, int, int, Evictable]] = []
        self._count = 0
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entry: Evictable) -> None:
        assert not entry.queued
        self._next += 1
        entry.queued = self._next
        self._count += 1
        heapq.heappush(self._items, (entry.value, entry.ticket, self._next, entry))

    def remove(self, entry: Evictable) -> None:
        """Harmless where the entry is not queued."""
        if not entry.queued:
            return
        entry.queued = 0
        self._count -= 1
        if len(self._items) > 2 * self._count + 64:
            self._items = [item for item in self._items if item[3].queued == item[2]]
            heapq.heapify(self._items)

    def first(self) -> Evictable | None:
        """The entry that goes next, which stays queued."""
        while self._items:
            number, entry = self._items[0][2:]
            if entry.queued == number:
                return entry
            heapq.heappop(self._items)
        return None
