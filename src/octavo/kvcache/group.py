"""One group of layers: its pool, its prefix cache, and what it has promised.

A request claims the blocks that it may hold at once, when it is admitted and whenever it grows; it gets them when a
step needs them. A claim is always kept: `available` is what can still be claimed.

A full group counts claims that nobody holds yet; a block that requests share is claimed by nobody twice, for it stays
shared until they leave. A window group (`WindowGroup`) serves layers that see the last `window` positions. A request
leaves the blocks that lie behind, so it never holds more than `most` at once and never claims more: long texts cost
what short ones do. There a shared block is claimed by each of its readers, for each goes on to blocks of its own.
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
    """Layers that see the whole context."""

    __slots__ = ("cache", "claimed", "pool", "window")

    def __init__(self, total: int, prefix_cache: bool, window: Window | None = None, eviction: str = "cost") -> None:
        self.pool = BlockPool(total)
        self.cache: PrefixCache = make_prefix_cache(prefix_cache, self.pool, window is not None, eviction)
        self.claimed = 0
        """Blocks that requests have claimed and do not hold yet."""
        self.window: int | None = None if window is None else window.tokens

    @property
    def available(self) -> int:
        """Blocks that can still be claimed."""
        return self.pool.available - self.claimed

    def capacity_blocks(self, kept: int = 0) -> int:
        """Blocks of positions that one request alone can have while others keep `kept` blocks."""
        return self.pool.total - kept

    def claim(self, live: int) -> int:
        """Blocks that a request with `live` blocks of positions not left behind needs at once."""
        return live

    def opened(self, held: int) -> None:
        """A request begins with `held` cached blocks."""

    def promise(self, count: int) -> None:
        """A request claims `count` blocks more."""
        self.claimed += count

    def closed(self, claim: int, held: int) -> None:
        """A request leaves its claim; its `held` blocks follow by `release`, at once or when a step has retired."""
        self.claimed -= claim - held

    def take(self, count: int) -> tuple[int, ...]:
        """Hands out claimed blocks."""
        self.claimed -= count
        return self._allocate(count)

    def release(self, blocks: Sequence[int]) -> None:
        """One reader less for each; from the end, so that children go idle before their parents."""
        for block in reversed(blocks):
            self.pool.release(block)
            self.cache.released(block)

    def released_late(self, blocks: Sequence[int]) -> None:
        """`release` of what a closed request has left."""
        self.release(blocks)

    def expected(self, claim: int, held: int) -> int:
        """What a request adds to `claimed`; for checks."""
        return claim - held

    def _allocate(self, count: int) -> tuple[int, ...]:
        pool = self.pool
        while pool.free < count:
            self.cache.evict()
        return tuple([pool.allocate() for _ in range(count)])


class WindowGroup(Group):
    """Layers that see the last positions alone. `claimed` counts whole claims, and blocks that are still parked."""

    __slots__ = ("_most",)

    def __init__(self, total: int, prefix_cache: bool, window: Window) -> None:
        super().__init__(total, prefix_cache, window)
        self._most = window.most

    @property
    def available(self) -> int:
        return self.pool.total - self.claimed

    def capacity_blocks(self, kept: int = 0) -> int:
        left = self.pool.total - kept
        return left if left < self._most else _UNBOUNDED

    def claim(self, live: int) -> int:
        return live if live < self._most else self._most

    def opened(self, held: int) -> None:
        self.claimed += held

    def take(self, count: int) -> tuple[int, ...]:
        return self._allocate(count)

    def released_late(self, blocks: Sequence[int]) -> None:
        self.claimed -= len(blocks)
        self.release(blocks)

    def expected(self, claim: int, held: int) -> int:
        assert held <= claim, "a request holds more blocks of a window than were planned for"
        return claim

    def hidden(self, computed: int, block_size: int) -> int:
        """Leading blocks that no position from `computed` on sees."""
        assert self.window is not None
        return max(0, computed - self.window + 1) // block_size


def make_group(total: int, prefix_cache: bool, window: Window | None, eviction: str = "cost") -> Group:
    """The group that a model's layers need."""
    if window is None:
        return Group(total, prefix_cache, eviction=eviction)
    return WindowGroup(total, prefix_cache, window)
