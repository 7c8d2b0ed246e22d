"""Block tables: which blocks hold a request's positions, in order.

A request has one `SequenceKV` for its whole life. It owns one `BlockTable` a group, and the chain of keys of its
full blocks. Blocks are promised by `KVManager.reserve`, put into the tables by `KVManager.advance`, left behind in
window groups by `KVManager.slide`, and given back by `KVManager.release` (at the end or on preemption); the tables may
be filled again; the key chain stays. Nothing here can be switched off.
"""

from __future__ import annotations

from octavo.kvcache.keys import KeyChain, KeyContext
from octavo.kvcache.prefix_cache import Entry, Parent
from octavo.kvcache.tiers.tier import Load
from octavo.types import LEFT_BLOCK


class BlockTable:
    """One group's blocks of one request, in order of position."""

    __slots__ = ("blocks", "left", "tail")

    def __init__(self, context: KeyContext) -> None:
        self.clear(context)

    def clear(self, context: KeyContext) -> None:
        """Nothing is held."""
        self.blocks: list[int] = []
        """The blocks that are held; the first is block `left` of the request."""
        self.left = 0
        """Blocks left behind: no later position sees them."""
        self.tail: Parent | None = context
        """Cache entry of the last published block: the parent of the next. None: nothing more is published."""

    def block(self, index: int) -> int:
        """Block `index` of the request, which is not left behind."""
        assert index >= self.left
        return self.blocks[index - self.left]

    def leave(self, count: int) -> list[int]:
        """Leaves the first `count` held blocks behind and returns them."""
        gone = self.blocks[:count]
        assert len(gone) == count, "a block is left before it was handed out"
        del self.blocks[:count]
        self.left += count
        return gone

    def cut(self, count: int, unpublished: int) -> list[int]:
        """Keeps the blocks below block `count` of the request and returns the rest, of which `unpublished` were
        published: the next one's parent is found above them, or, where entries stand alone, nothing more is."""
        gone = self.blocks[count - self.left :]
        del self.blocks[count - self.left :]
        for _ in range(unpublished):
            self.tail = self.tail.parent if isinstance(self.tail, Entry) else None
        return gone

    def head(self, count: int) -> tuple[int, ...]:
        """The first `count` blocks, with LEFT_BLOCK for those left behind."""
        return (LEFT_BLOCK,) * min(self.left, count) + tuple(self.blocks[: max(0, count - self.left)])


class SequenceKV:
    """One request's pages. Only `KVManager` writes here, except `last_step`."""

    __slots__ = (
        "capacity",
        "chain",
        "fresh",
        "handed",
        "last_step",
        "load",
        "matched",
        "num_blocks",
        "published",
        "tables",
        "was_open",
    )

    def __init__(self, context: KeyContext, groups: int, fresh: bool = False) -> None:
        self.chain = KeyChain(context)
        self.fresh = fresh
        """All positions are computed for this request, together: no hits, and a preemption leaves it nothing."""
        self.tables = [BlockTable(context) for _ in range(groups)]
        self.num_blocks = 0
        """Blocks of positions that are promised, in every group."""
        self.capacity = 0
        """Positions in them."""
        self.handed = 0
        """Blocks of positions that the tables have had."""
        self.matched = 0
        """Positions that the prefix cache filled when the tables were last opened."""
        self.published = 0
        """Full blocks already offered to the prefix cache, or taken from it."""
        self.was_open = False
        """It has held blocks before: what it finds in the prefix cache now is no hit of a new request."""
        self.load: Load | None = None
        """Blocks behind the matched ones that a tier is bringing; the request waits for them."""
        self.last_step = -1
        """Newest step that may touch the blocks; written by the scheduler when it plans work."""
