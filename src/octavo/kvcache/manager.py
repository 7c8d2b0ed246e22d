"""The KV manager: the only door to pages. Who may use which block, and when it is free again.

    reserve  -- blocks for a request's positions; an empty request takes matching cached blocks first, pinned at once
    commit   -- publishes the full blocks of a retired step to the prefix cache
    release  -- the request leaves its blocks; they are parked under the newest step that may still touch them
    retire   -- a step is over: blocks parked under it lose that reader
    validate -- recomputes every count from scratch

A group is a set of layers that share one block table; each has its own pool and prefix cache, all tables of a
request grow together, and a prefix counts as cached only where every group has it. (A window group keeps all its
blocks: correct, and no smaller than a full one.)

Off: `kv.prefix_cache` (see prefix_cache.py), and `kv.paged`: one block of `max_model_len` tokens a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from octavo.config import KVConfig
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.block_table import SequenceKV
from octavo.kvcache.keys import KeyContext
from octavo.kvcache.prefix_cache import PrefixCache, make_prefix_cache
from octavo.types import ModelInfo

NewBlocks = tuple[tuple[int, ...], ...]
"""Blocks appended to a request's tables, one tuple a group."""


class Group:
    """One group's pool and cache."""

    __slots__ = ("cache", "pool")

    def __init__(self, total: int, prefix_cache: bool) -> None:
        self.pool = BlockPool(total)
        self.cache: PrefixCache = make_prefix_cache(prefix_cache, self.pool)

    def take(self, count: int) -> tuple[int, ...]:
        """`count` new blocks; the caller has checked that so many are available."""
        pool = self.pool
        while pool.free < count:
            self.cache.evict()
        return tuple([pool.allocate() for _ in range(count)])

    def release(self, blocks: Sequence[int]) -> None:
        """One reader less for each; from the end, so that children go idle before their parents."""
        for block in reversed(blocks):
            self.pool.release(block)
            self.cache.released(block)


class KVManager:
    """Pages of all requests. `sequence` makes a request's handle; the rest takes it."""

    def __init__(self, num_blocks: tuple[int, ...], block_size: int, prefix_cache: bool, identity: KeyContext) -> None:
        assert num_blocks, "there is at least one group"
        assert identity.block_size == block_size
        self.block_size = block_size
        self.groups = [Group(total, prefix_cache) for total in num_blocks]
        self.no_blocks: NewBlocks = ((),) * len(num_blocks)
        self._identity = identity
        self._open: dict[int, SequenceKV] = {}
        self._parked: dict[int, list[list[list[int]]]] = {}
        self._retired = -1

    @property
    def available(self) -> int:
        """Blocks that every group could hand out now."""
        return min(group.pool.available for group in self.groups)

    @property
    def capacity_tokens(self) -> int:
        """Positions that the smallest pool holds."""
        return min(group.pool.total for group in self.groups) * self.block_size

    @property
    def has_parked(self) -> bool:
        """Some blocks wait for a step to retire."""
        return bool(self._parked)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def sequence(self, adapter: str = "", tenant: str = "", salt: str = "") -> SequenceKV:
        """A new request's handle; it owns nothing until `reserve`."""
        own = self._identity
        context = KeyContext(own.weights_id, own.numerics_id, own.block_size, adapter, tenant, salt)
        return SequenceKV(context, len(self.groups))

    def reserve(self, seq: SequenceKV, tokens: Sequence[int], upto: int, spare: int = 0) -> NewBlocks | None:
        """Blocks for the positions [0, upto), while `spare` further blocks stay available.

        Returns what was appended after the matched blocks, or None, and then nothing has changed.
        """
        opened = not seq.num_blocks
        if opened:
            self._match(seq, tokens)
        count = self.blocks_for(upto) - seq.num_blocks
        if count <= 0:
            return self.no_blocks
        if count + spare > self.available:
            if opened:
                self._empty(seq)
            return None
        new = tuple([group.take(count) for group in self.groups])
        for table, blocks in zip(seq.tables, new, strict=True):
            table.blocks.extend(blocks)
        seq.capacity += count * self.block_size
        self._open[id(seq)] = seq
        return new

    def commit(self, seq: SequenceKV, tokens: Sequence[int], upto: int) -> None:
        """The positions [0, upto) are computed: publishes the blocks that they fill."""
        size = self.block_size
        for index in range(seq.published, upto // size):
            for group, table in zip(self.groups, seq.tables, strict=True):
                if table.tail is not None:
                    content = tokens[index * size : (index + 1) * size]
                    key = seq.chain.key(index, tokens)
                    table.tail = group.cache.commit(table.tail, key, content, table.blocks[index])
            seq.published = index + 1

    def release(self, seq: SequenceKV) -> None:
        """The request leaves all its blocks; harmless when it has none."""
        if seq.num_blocks and seq.last_step > self._retired:
            self._parked.setdefault(seq.last_step, []).append([table.blocks for table in seq.tables])
            for table in seq.tables:
                table.blocks = []
        self._empty(seq)

    def retire(self, step_id: int) -> None:
        """Step `step_id` and all before it no longer touch any block."""
        assert step_id > self._retired, "steps retire in order"
        self._retired = step_id
        if not self._parked:
            return
        for step in [step for step in self._parked if step <= step_id]:
            for tables in self._parked.pop(step):
                for group, blocks in zip(self.groups, tables, strict=True):
                    group.release(blocks)

    def validate(self) -> None:
        """Asserts that pools, caches, tables and parked blocks agree."""
        for number, group in enumerate(self.groups):
            readers: Counter[int] = Counter()
            for seq in self._open.values():
                assert seq.capacity == seq.num_blocks * self.block_size
                readers.update(seq.tables[number].blocks)
                assert len(set(seq.tables[number].blocks)) == seq.num_blocks, "a block stands twice in one table"
            for parked in self._parked.values():
                for tables in parked:
                    readers.update(tables[number])
            group.pool.validate(readers, group.cache.held())

    def _match(self, seq: SequenceKV, tokens: Sequence[int]) -> None:
        """Finds the cached beginning of `tokens` in every group and pins it."""
        runs = [group.cache.match(seq.chain, tokens) for group in self.groups]
        count = min(len(run) for run in runs)
        if not count:
            return
        for group, table, run in zip(self.groups, seq.tables, runs, strict=True):
            group.cache.pin(run[:count])
            table.blocks = [entry.block for entry in run[:count]]
            table.tail = run[count - 1]
        seq.matched = seq.capacity = count * self.block_size
        seq.published = count
        self._open[id(seq)] = seq

    def _empty(self, seq: SequenceKV) -> None:
        for group, table in zip(self.groups, seq.tables, strict=True):
            group.release(table.blocks)
            table.blocks = []
            table.tail = seq.chain.context
        seq.capacity = seq.matched = seq.published = 0
        self._open.pop(id(seq), None)


def block_tokens(config: KVConfig, max_model_len: int) -> int:
    """Tokens a block: `kv.block_size`, or a whole context where `kv.paged` is off."""
    if config.paged:
        return config.block_size
    return -(-max_model_len // 32) * 32


def make_kv(config: KVConfig, info: ModelInfo, num_blocks: tuple[int, ...], max_model_len: int) -> KVManager:
    """The manager that the configuration asks for, over the executor's pools."""
    size = block_tokens(config, max_model_len)
    identity = KeyContext(info.weights_id, info.numerics_id, size)
    return KVManager(num_blocks, size, config.prefix_cache, identity)
