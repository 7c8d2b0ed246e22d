"""The block pool of one group: ids, reference counts and the free list.

The only place where a block becomes free. A block is in exactly one of three states:

    free  -- on the free list, nothing in it matters
    used  -- at least one reader (a block table, or a step in flight that outlives its request)
    idle  -- no reader, but the prefix cache holds it; it can be read again, or evicted

    free --allocate--> used --release--> free, or idle where held
    idle --share--> used            idle --unhold--> free

There is no off switch: with `kv.paged` off the same pool hands out blocks of a whole context.
"""

from __future__ import annotations


class BlockPool:
    """Counts readers of every block. All operations are O(1) a block."""

    __slots__ = ("_free_ids", "_held", "_idle", "_readers", "total")

    def __init__(self, total: int) -> None:
        assert total > 0, "a pool needs at least one block"
        self.total = total
        self._readers = [0] * total
        self._held = bytearray(total)
        self._free_ids = list(range(total - 1, -1, -1))
        self._idle = 0

    @property
    def free(self) -> int:
        return len(self._free_ids)

    @property
    def idle(self) -> int:
        return self._idle

    @property
    def used(self) -> int:
        return self.total - self._idle - len(self._free_ids)

    @property
    def available(self) -> int:
        """Blocks that nobody reads: free ones, and idle ones that may be evicted."""
        return self._idle + len(self._free_ids)

    def allocate(self) -> int:
        """A free block, with one reader."""
        block = self._free_ids.pop()
        self._readers[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reader for a block that is used or idle."""
        if self._readers[block] == 0:
            assert self._held[block], f"block {block} is free and cannot be shared"
            self._idle -= 1
        self._readers[block] += 1

    def release(self, block: int) -> None:
        """One reader less; the last one leaves the block free, or idle where the prefix cache holds it."""
        readers = self._readers[block] - 1
        assert readers >= 0, f"block {block} was released more often than taken"
        self._readers[block] = readers
        if readers == 0:
            if self._held[block]:
                self._idle += 1
            else:
                self._free(block)

    def hold(self, block: int) -> None:
        """The prefix cache keeps the block's content beyond its last reader."""
        assert self._readers[block] > 0 and not self._held[block], f"block {block} cannot be held"
        self._held[block] = 1

    def unhold(self, block: int) -> None:
        """The prefix cache gives the block up."""
        assert self._held[block], f"block {block} is not held"
        self._held[block] = 0
        if self._readers[block] == 0:
            self._idle -= 1
            self._free(block)

    def readers(self, block: int) -> int:
        return self._readers[block]

    def is_idle(self, block: int) -> bool:
        return bool(self._held[block]) and self._readers[block] == 0

    def free_ids(self) -> tuple[int, ...]:
        """The free blocks, for checks and tests."""
        return tuple(self._free_ids)

    def validate(self, readers: dict[int, int], held: set[int]) -> None:
        """Compares every count with `readers` and `held`, which the caller recomputed from the tables and the cache."""
        free = set(self._free_ids)
        assert len(free) == len(self._free_ids), "a block is on the free list twice"
        for block in range(self.total):
            expected = readers.get(block, 0)
            assert self._readers[block] == expected, (
                f"block {block}: {self._readers[block]} readers, tables say {expected}"
            )
            assert bool(self._held[block]) == (block in held), f"block {block}: held flag differs from the cache"
            assert (block in free) == (expected == 0 and block not in held), f"block {block}: free list is wrong"
        assert self._idle == sum(1 for block in held if readers.get(block, 0) == 0), "the idle count is wrong"
        assert self.free + self.used + self.idle == self.total

    def _free(self, block: int) -> None:
        self._free_ids.append(block)
