"""The KV manager: the only door to pages. Who may use which block, and when it is free again.

    reserve  -- promises blocks for a request's positions; an empty request takes matching cached blocks first, pinned
    advance  -- hands out promised blocks, as far as a step that is about to be submitted reaches
    commit   -- publishes the full blocks of a retired step to the prefix cache
    slide    -- in window groups, leaves the blocks that no later position sees
    give_back -- blocks beyond the computed positions, had for guesses that were wrong, are parked
    trim     -- the request keeps a beginning of its blocks and leaves the rest
    release  -- the request leaves its blocks; they are parked under the newest step that may still touch them
    loaded   -- blocks that a tier below the pages brought are taken in (tiers/tier.py)
    retire   -- a step is over: blocks parked under it lose that reader
    validate -- recomputes every count from scratch

A group is a set of layers that share one block table; each has its own pool and prefix cache (group.py). A promise
is kept: blocks that were reserved can always be had, so no step fails half-way. A prefix counts as cached only where
every group holds what the next position sees of it.

Off: `kv.prefix_cache` (see prefix_cache.py), and `kv.paged`: one block of `max_model_len` tokens a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from octavo.config import KVConfig, most_live
from octavo.kvcache.block_table import SequenceKV
from octavo.kvcache.group import Group, Window, WindowGroup, make_group
from octavo.kvcache.keys import KeyContext, pack_tokens
from octavo.kvcache.prefix_cache import AnyEntry
from octavo.kvcache.tiers.tier import Load, NoTier, Tier, Want
from octavo.kvcache.tiers.wire import Cached
from octavo.kvcache.verify import VerifyingCache
from octavo.types import KVGroupSpec, ModelInfo

NewBlocks = tuple[tuple[int, ...], ...]
"""Blocks appended to a request's tables, one tuple a group."""
Growth = Mapping[SequenceKV, int]
"""Tokens that requests may come to hold."""


class KVManager:
    """Pages of all requests. `sequence` makes a request's handle; the rest takes it."""

    def __init__(
        self,
        groups: Sequence[Group],
        block_size: int,
        identity: KeyContext,
        shared_scope: bool = False,
        tier: Tier | None = None,
    ) -> None:
        """shared_scope: tenants share what they cache."""
        assert groups, "there is at least one group"
        assert identity.block_size == block_size
        self.block_size = block_size
        self.groups = list(groups)
        self.no_blocks: NewBlocks = ((),) * len(groups)
        self._windows = [(number, group) for number, group in enumerate(self.groups) if isinstance(group, WindowGroup)]
        self._identity = identity
        self._shared_scope = shared_scope
        self._kept_clear = 0
        self.headroom = [0] * len(groups)
        """Blocks of each group that pins may still take; admission with growth leaves them."""
        self._open: dict[int, SequenceKV] = {}
        self._parked: dict[int, list[list[list[int]]]] = {}
        self._retired = -1
        self.tier: Tier = tier or NoTier()
        self._loads = 0
        """Requests that wait for one."""
        self._left_loads: list[tuple[Load, list[list[int]]]] = []
        """Loads that nobody waits for, and the blocks that they may still write to."""
        if self.tier.on:
            for number, group in enumerate(self.groups):
                group.cache.spill = partial(self._spill, number)

    @property
    def available(self) -> int:
        """Blocks that every group could promise now."""
        return min(group.available for group in self.groups)

    @property
    def capacity_tokens(self) -> int:
        """Positions that one request alone can have."""
        return min(group.capacity_blocks(self._kept_clear) for group in self.groups) * self.block_size

    @property
    def has_parked(self) -> bool:
        """Some blocks wait for a step to retire, or for a load to let go of them."""
        return bool(self._parked or self._left_loads)

    @property
    def loading(self) -> bool:
        """Blocks are coming from the tier."""
        return bool(self._loads or self._left_loads)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def sequence(self, adapter: str = "", tenant: str = "", salt: str = "", fresh: bool = False) -> SequenceKV:
        """A new request's handle; it owns nothing until `reserve`. fresh: see `SequenceKV.fresh`."""
        own = self._identity
        scope = "" if self._shared_scope else tenant
        context = KeyContext(own.weights_id, own.numerics_id, own.block_size, adapter, scope, salt)
        return SequenceKV(context, len(self.groups), fresh)

    def reserve(
        self, seq: SequenceKV, tokens: Sequence[int], upto: int, growth: Growth | None = None, spare: int = 0
    ) -> bool:
        """Promises blocks for the positions [0, upto), while all in `growth` could still be promised theirs.

        spare: blocks that must be left in every group that sees the whole context.
        False: there is no room, and nothing has changed.
        """
        opened = not seq.num_blocks
        if opened and not seq.fresh:
            self._match(seq, tokens)
        want = max(self.blocks_for(upto), seq.num_blocks)
        if want == seq.num_blocks and not growth and not opened:
            return True
        if self._missing(seq, want, growth, spare) > 0:
            if opened:
                self._empty(seq)
            return False
        for group, table in zip(self.groups, seq.tables, strict=True):
            group.promise(group.claim(want - table.left) - group.claim(seq.num_blocks - table.left))
        seq.num_blocks = want
        seq.capacity = want * self.block_size
        self._open[id(seq)] = seq
        if opened and self.tier.on and not seq.fresh:
            self._load(seq, tokens)
        return True

    def keep_clear(self, blocks: int) -> None:
        """So many blocks of every group may be pinned: requests are to fit beside them."""
        assert 0 <= blocks < min(group.pool.total for group in self.groups) or not blocks
        self._kept_clear = blocks
        self.headroom = [blocks] * len(self.groups)

    def hold(self, seq: SequenceKV, tokens: Sequence[int]) -> bool:
        """Takes the cached beginning of `tokens`, which fill their blocks, and no more; given back by `release`.

        False: nothing is cached, or promises to others would be broken, and nothing has changed. It counts as no hit.
        """
        seq.was_open = True
        self._match(seq, tokens)
        if seq.num_blocks and not self._missing(seq, seq.num_blocks, None, 0):
            return True
        self._empty(seq)
        return False

    def advance(self, seq: SequenceKV, upto: int) -> NewBlocks:
        """Hands out promised blocks for the positions below `upto`: what each table gained."""
        want = self.blocks_for(upto)
        count = want - seq.handed
        if count <= 0:
            return self.no_blocks
        assert want <= seq.num_blocks, "positions were never reserved"
        new = tuple([group.take(count) for group in self.groups])
        for table, blocks in zip(seq.tables, new, strict=True):
            table.blocks.extend(blocks)
        seq.handed = want
        return new

    def beyond_matched(self, seq: SequenceKV) -> NewBlocks:
        """All blocks that the tables have had behind the matched ones, those included that a load left unfilled."""
        return tuple([tuple(table.blocks[seq.matched // self.block_size - table.left :]) for table in seq.tables])

    def commit(self, seq: SequenceKV, tokens: Sequence[int], upto: int) -> None:
        """The positions [0, upto) are computed: publishes the blocks that they fill."""
        size = self.block_size
        for index in range(seq.published, upto // size):
            for group, table in zip(self.groups, seq.tables, strict=True):
                if table.tail is not None:
                    content = tokens[index * size : (index + 1) * size]
                    key = seq.chain.key(index, tokens)
                    table.tail = group.cache.commit(table.tail, key, content, table.block(index))
            seq.published = index + 1

    def loaded(self, seq: SequenceKV, tokens: Sequence[int]) -> None:
        """The request's load is done: what it brought counts as matched, and is published."""
        load = seq.load
        assert load is not None and load.done
        seq.load = None
        self._loads -= 1
        upto = seq.matched + load.came // len(self.groups) * self.block_size
        self.commit(seq, tokens, upto)
        seq.matched = upto

    def take_loads(self) -> None:
        """Frees the blocks of loads that nobody waits for any more, once they are done."""
        for load, blocks in self._left_loads:
            if load.done:
                self._release(blocks)
        self._left_loads = [left for left in self._left_loads if not left[0].done]

    def kept(self) -> Iterator[tuple[int, Cached]]:
        """(group, block) of all that the prefix caches hold and nobody reads, the most valuable first."""
        for number, group in enumerate(self.groups):
            for entry in group.cache.idle():
                yield number, Cached(entry.key, entry.above, entry.packed, entry.block)

    def slide(self, seq: SequenceKV, computed: int) -> None:
        """The positions below `computed` are computed: window groups leave the blocks that no later one sees."""
        for number, group in self._windows:
            table = seq.tables[number]
            count = group.hidden(computed, self.block_size) - table.left
            if count > 0:
                claim = group.claim(seq.num_blocks - table.left)
                group.release(table.leave(count))
                group.promise(group.claim(seq.num_blocks - table.left) - claim)

    def give_back(self, seq: SequenceKV, computed: int) -> None:
        """Blocks of positions from `computed` on alone are parked, or no more promised.

        Called when the step that wrote there retires and no later one touches them.
        """
        keep = self.blocks_for(computed)
        if keep >= seq.num_blocks:
            return
        assert keep >= seq.published, "a block of a rejected guess was published"
        tails: list[list[int]] = []
        for group, table in zip(self.groups, seq.tables, strict=True):
            gone = table.cut(max(keep, table.left), 0)
            claim = group.claim(seq.num_blocks - table.left) - group.claim(max(0, keep - table.left))
            group.closed(claim, len(gone))
            tails.append(gone)
        if seq.last_step > self._retired:
            self._parked.setdefault(seq.last_step, []).append(tails)
        else:
            self._release(tails)
        seq.num_blocks = keep
        seq.handed = min(seq.handed, keep)
        seq.capacity = keep * self.block_size

    def release(self, seq: SequenceKV) -> None:
        """The request leaves all its blocks; harmless when it has none."""
        if not seq.num_blocks:
            return
        blocks = [table.blocks for table in seq.tables]
        for group, table in zip(self.groups, seq.tables, strict=True):
            group.closed(group.claim(seq.num_blocks - table.left), len(table.blocks))
        if seq.load is not None:
            # Not under a step as well: no step has touched what the load writes to.
            seq.load.cancelled = True
            self._loads -= 1
            self._left_loads.append((seq.load, blocks))
        elif seq.last_step > self._retired:
            self._parked.setdefault(seq.last_step, []).append(blocks)
        else:
            self._release(blocks)
        self._reset(seq)
        seq.was_open = True

    def trim(self, seq: SequenceKV, blocks: int) -> None:
        """The request keeps its first `blocks` blocks, all computed, as if they had been matched; the rest is parked.

        It keeps none where a window group has left a block behind that the position after them sees, and none where it
        computes all positions together.
        """
        size = self.block_size
        blocks = min(blocks, seq.handed)
        gone = any(seq.tables[number].left > group.hidden(blocks * size, size) for number, group in self._windows)
        if blocks <= 0 or gone or seq.fresh or seq.load is not None:
            self.release(seq)
            return
        tails: list[list[int]] = []
        for group, table in zip(self.groups, seq.tables, strict=True):
            group.closed(group.claim(seq.num_blocks - table.left), len(table.blocks))
            tails.append(table.cut(blocks, seq.published - blocks))
        if seq.last_step > self._retired:
            self._parked.setdefault(seq.last_step, []).append(tails)
        else:
            self._release(tails)
        seq.num_blocks = seq.handed = blocks
        seq.capacity = seq.matched = blocks * size
        seq.published = min(seq.published, blocks)
        seq.was_open = True

    def retire(self, step_id: int) -> None:
        """Step `step_id` and all before it no longer touch any block."""
        assert step_id > self._retired, "steps retire in order"
        self._retired = step_id
        if not self._parked:
            return
        for step in [step for step in self._parked if step <= step_id]:
            for tables in self._parked.pop(step):
                self._release(tables)

    def validate(self) -> None:
        """Asserts that pools, caches, tables, promises and parked blocks agree."""
        assert self._loads == sum(seq.load is not None for seq in self._open.values())
        for number, group in enumerate(self.groups):
            readers: Counter[int] = Counter()
            claimed = 0
            for seq in self._open.values():
                table = seq.tables[number]
                assert seq.capacity == seq.num_blocks * self.block_size
                assert table.left + len(table.blocks) == seq.handed <= seq.num_blocks
                assert len(set(table.blocks)) == len(table.blocks), "a block stands twice in one table"
                readers.update(table.blocks)
                claimed += group.expected(group.claim(seq.num_blocks - table.left), len(table.blocks))
            for parked in self._parked.values():
                for tables in parked:
                    readers.update(tables[number])
                    claimed += group.expected(len(tables[number]), len(tables[number]))
            for _, tables in self._left_loads:
                readers.update(tables[number])
                claimed += group.expected(len(tables[number]), len(tables[number]))
            assert group.claimed == claimed, f"{group.claimed} blocks are claimed, tables say {claimed}"
            assert group.available >= 0, f"{-group.available} more blocks are claimed than there are"
            group.pool.validate(readers, group.cache.held())

    def missing(self, seq: SequenceKV, upto: int, growth: Growth | None = None, spare: int = 0) -> int:
        """Blocks short of what `reserve` asks for, cached ones not counted; 0 where there is room."""
        return max(0, self._missing(seq, max(self.blocks_for(upto), seq.num_blocks), growth, spare))

    def _missing(self, seq: SequenceKV, want: int, growth: Growth | None, spare: int) -> int:
        """Blocks short in the worst group of a promise of `want` blocks, and of what `growth` may ask for besides."""
        wants = {seq: want}
        for other, grown in (growth or {}).items():
            wants[other] = max(wants.get(other, other.num_blocks), self.blocks_for(grown))
        missing = 0
        for number, group in enumerate(self.groups):
            need = spare if group.window is None else 0
            for other, blocks in wants.items():
                left = other.tables[number].left
                need += group.claim(blocks - left) - group.claim(other.num_blocks - left)
            missing = max(missing, need + (self.headroom[number] if growth else 0) - group.available)
        return missing

    def _match(self, seq: SequenceKV, tokens: Sequence[int]) -> None:
        """Finds the longest cached beginning of `tokens` that every group can go on from, and pins it."""
        found = [group.cache.match(seq.chain, tokens) for group in self.groups]
        count = longest_start(found, [group.window for group in self.groups], self.block_size)
        if not count:
            return
        for group, table, entries in zip(self.groups, seq.tables, found, strict=True):
            table.left = first_seen(count, group.window, self.block_size)
            run = [entry for entry in entries[table.left : count] if entry is not None]
            group.cache.pin(run, hit=not seq.was_open)
            group.opened(len(run))
            table.blocks = [entry.block for entry in run]
            table.tail = run[-1]
        seq.matched = seq.capacity = count * self.block_size
        seq.published = seq.handed = seq.num_blocks = count
        self._open[id(seq)] = seq

    def _load(self, seq: SequenceKV, tokens: Sequence[int]) -> None:
        """Starts to bring what follows the matched blocks, where the tier has it and it is worth the wait."""
        size = self.block_size
        first = seq.matched // size
        # The last block too, where the tokens fill it: its last position is computed again, and not stored.
        count = self.tier.run(seq.chain, tokens, first, min(seq.num_blocks, len(tokens) // size))
        if not count:
            return
        self.advance(seq, (first + count) * size)
        wants = []
        for index in range(first, first + count):
            above = seq.chain.above(index, tokens)
            packed = pack_tokens(tokens[index * size : (index + 1) * size])
            for number, table in enumerate(seq.tables):
                wants.append(Want(number, Cached(seq.chain.key(index, tokens), above, packed, table.block(index))))
        seq.load = self.tier.load(wants)
        self._loads += 1

    def _spill(self, number: int, entry: AnyEntry) -> None:
        self.tier.spill(number, Cached(entry.key, entry.above, entry.packed, entry.block))

    def _empty(self, seq: SequenceKV) -> None:
        """Undoes `_match`."""
        if seq.num_blocks:
            self._release([table.blocks for table in seq.tables])
            self._reset(seq)

    def _release(self, tables: Sequence[Sequence[int]]) -> None:
        for group, blocks in zip(self.groups, tables, strict=True):
            group.released_late(blocks)

    def _reset(self, seq: SequenceKV) -> None:
        for table in seq.tables:
            table.clear(seq.chain.context)
        seq.load = None
        seq.capacity = seq.matched = seq.published = seq.handed = seq.num_blocks = 0
        del self._open[id(seq)]


def first_seen(blocks: int, window: int | None, block_size: int) -> int:
    """The first block that is needed to go on after `blocks` cached ones (their last position may be computed anew)."""
    return 0 if window is None else max(0, (blocks * block_size - window) // block_size)


def longest_start(found: Sequence[Sequence[object]], windows: Sequence[int | None], block_size: int) -> int:
    """The most blocks to start from: each group holds all that is needed of them. None stands for a missing block."""
    best = 0
    runs = [0] * len(found)
    for index in range(min(len(entries) for entries in found)):
        for number, entries in enumerate(found):
            runs[number] = 0 if entries[index] is None else runs[number] + 1
        count = index + 1
        if all(run >= count - first_seen(count, window, block_size) for run, window in zip(runs, windows, strict=True)):
            best = count
    return best


def block_tokens(config: KVConfig, max_model_len: int) -> int:
    """Tokens a block: `kv.block_size`, or a whole context where `kv.paged` is off."""
    if config.paged:
        return config.block_size
    return -(-max_model_len // 32) * 32


def _window(spec: KVGroupSpec, lead: int, block_size: int) -> Window | None:
    return None if spec.window is None else Window(spec.window, most_live(spec.window, lead, block_size))


def make_kv(
    config: KVConfig,
    info: ModelInfo,
    num_blocks: tuple[int, ...],
    max_model_len: int,
    lead: int,
    tier: Tier | None = None,
) -> KVManager:
    """The manager that the configuration asks for, over the executor's pools.

    lead: positions of one request that may be submitted and not yet retired.
    """
    size = block_tokens(config, max_model_len)
    identity = KeyContext(info.weights_id, info.numerics_id, size)
    groups = [
        make_group(total, config.prefix_cache, _window(spec, lead, size), config.eviction)
        for total, spec in zip(num_blocks, info.kv_groups, strict=True)
    ]
    if config.verify_prefix_cache and config.prefix_cache:
        for group in groups:
            group.cache = VerifyingCache(group.cache)
    return KVManager(groups, size, identity, config.prefix_scope == "shared", tier)
