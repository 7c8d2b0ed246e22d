"""One group of layers: its pool, its prefix cache, and what it has promised.

A request is promised blocks when it is admitted and whenever it grows; it gets them when a step needs them. `owed`
counts promised blocks that nobody holds yet; the pool always has that many to hand out, so a promise never fails.

A window group serves layers that see the last `window` positions. A request leaves the blocks that lie behind, so it
never holds more than `most` at once, and is never promised more: long texts cost what short ones do.
Off: a model without windows has full groups alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.prefix_cache import PrefixCache, make_prefix_cache

_UNBOUNDED = 1 << 40


@dataclass(frozen=True)
class Window:
    """How a window group forgets."""

    tokens: int
    """A position sees itself and the `tokens` - 1 before it."""
    most: int
    """Blocks that one request holds at once at most."""


class Group:
    """See the module."""

    __slots__ = ("_most", "cache", "owed", "pool", "window")

    def __init__(self, total: int, prefix_cache: bool, window: Window | None = None) -> None:
        self.pool = BlockPool(total)
        self.cache: PrefixCache = make_prefix_cache(prefix_cache, self.pool, windowed=window is not None)
        self.owed = 0
        self.window = None if window is None else window.tokens
        self._most = _UNBOUNDED if window is None else window.most

    @property
    def available(self) -> int:
        """Blocks that can still be promised."""
        return self.pool.available - self.owed

    @property
    def capacity_blocks(self) -> int:
        """Blocks of positions that one request alone can have."""
        return self.pool.total if self.pool.total < self._most else _UNBOUNDED

    def claim(self, live: int) -> int:
        """Blocks that a request with `live` blocks of positions not left behind needs at once."""
        return live if live < self._most else self._most

    def promise(self, count: int) -> None:
        """`count` more blocks are owed (or fewer)."""
        self.owed += count

    def take(self, count: int) -> tuple[int, ...]:
        """Hands out promised blocks."""
        pool = self.pool
        while pool.free < count:
            self.cache.evict()
        self.owed -= count
        assert self.owed >= 0, "a request holds more blocks of a window than were planned for"
        return tuple([pool.allocate() for _ in range(count)])

    def hidden(self, computed: int, block_size: int) -> int:
        """Leading blocks that no position from `computed` on sees."""
        assert self.window is not None
        return max(0, computed - self.window + 1) // block_size

    def release(self, blocks: Sequence[int]) -> None:
        """One reader less for each; from the end, so that children go idle before their parents."""
        for block in reversed(blocks):
            self.pool.release(block)
            self.cache.released(block)
