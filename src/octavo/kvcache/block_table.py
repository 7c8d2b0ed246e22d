"""Block tables: which blocks hold a request's positions, in order.

A request has one `SequenceKV` for its whole life. It owns one `BlockTable` a group, and the chain of keys of its
full blocks. The tables are filled by `KVManager.reserve`, emptied by `KVManager.release` (at the end or on
preemption), and may be filled again; the key chain stays. Nothing here can be switched off.
"""

from __future__ import annotations

from octavo.kvcache.keys import KeyChain, KeyContext
from octavo.kvcache.prefix_cache import Parent


class BlockTable:
    """One group's blocks of one request, in order of position."""

    __slots__ = ("blocks", "tail")

    def __init__(self, context: KeyContext) -> None:
        self.blocks: list[int] = []
        self.tail: Parent | None = context
        """Cache entry of the last published block: the parent of the next. None: nothing more is published."""


class SequenceKV:
    """One request's pages. Only `KVManager` writes here, except `last_step`."""

    __slots__ = ("capacity", "chain", "last_step", "matched", "published", "tables")

    def __init__(self, context: KeyContext, groups: int) -> None:
        self.chain = KeyChain(context)
        self.tables = [BlockTable(context) for _ in range(groups)]
        self.capacity = 0
        """Positions that have a block."""
        self.matched = 0
        """Positions that the prefix cache filled when the tables were last opened."""
        self.published = 0
        """Full blocks already offered to the prefix cache, or taken from it."""
        self.last_step = -1
        """Newest step that may touch the blocks; written by the scheduler when it plans work."""

    @property
    def num_blocks(self) -> int:
        """Blocks in each table."""
        return len(self.tables[0].blocks)
