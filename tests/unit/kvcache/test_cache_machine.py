"""The prefix cache under random use: what is found is what was published, leaves go first, counts equal readers.

`pages` says what each block was filled with, and is forgotten when the block is handed out again.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.eviction import make_retention
from octavo.kvcache.keys import KeyChain, KeyContext
from octavo.kvcache.prefix_cache import AnyEntry, Entry, KeyedPrefixCache, Parent

SIZE, TOTAL = 2, 7
CONTEXTS = [KeyContext("w", "n", SIZE), KeyContext("w", "n", SIZE, tenant="t")]
Page = tuple[KeyContext, tuple[int, ...]]
"""Whose block it is, and all tokens up to its end."""


class Reader:
    """One open request."""

    def __init__(self, context: KeyContext, tokens: list[int], found: list[Entry], blocks: list[int]) -> None:
        self.chain = KeyChain(context)
        self.tokens = tokens
        self.blocks = blocks
        self.published = len(found)
        self.tail: Parent | None = found[-1] if found else context

    def page(self, index: int) -> Page:
        return self.chain.context, tuple(self.tokens[: (index + 1) * SIZE])


class CacheMachine(RuleBasedStateMachine):
    """See the module."""

    @initialize(eviction=st.sampled_from(["cost", "lru"]))
    def begin(self, eviction: str) -> None:
        self.pool = BlockPool(TOTAL)
        self.cache = KeyedPrefixCache(self.pool, make_retention(eviction, TOTAL))
        self.cache.spill = self._spilled
        self.open: list[Reader] = []
        self.pages: dict[int, Page] = {}
        self.gone: list[AnyEntry] = []

    def _spilled(self, entry: AnyEntry) -> None:
        assert self.pool.readers(entry.block) == 0 or self.sweeping, "a block in use left the cache"
        self.gone.append(entry)

    sweeping = False
    """Idle entries without a leaf are evicted with what stands below them."""

    def _evict(self) -> None:
        idle = [entry for entry in self.cache._entries.values() if self.pool.is_idle(entry.block)]
        leaves = [entry for entry in idle if not entry.children]
        expected = min(leaves, key=lambda entry: (entry.value, entry.ticket)) if leaves else None
        before = self.cache.evictions
        self.gone.clear()
        self.sweeping = expected is None
        self.cache.evict()
        self.sweeping = False
        assert self.cache.evictions - before == len(self.gone) >= 1
        if expected is not None:
            assert self.gone == [expected], "another leaf than the cheapest went"

    @rule(
        context=st.sampled_from(CONTEXTS),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=4).map(lambda t: [x for x in t for _ in range(SIZE)]),
        hit=st.booleans(),
    )
    def start(self, context: KeyContext, tokens: list[int], hit: bool) -> None:
        found = self.cache.match(KeyChain(context), tokens)
        reader = Reader(context, tokens, found, [entry.block for entry in found])
        for index, entry in enumerate(found):
            assert self.pages[entry.block] == reader.page(index), "a hit holds other tokens"
        hits = [entry.hits for entry in found]
        self.cache.pin(found, hit)
        assert [entry.hits for entry in found] == [count + hit for count in hits]
        need = len(tokens) // SIZE - len(found)
        if self.pool.available < need:
            self._leave(reader)
            return
        while self.pool.free < need:
            self._evict()
        for _ in range(need):
            block = self.pool.allocate()
            self.pages.pop(block, None)
            reader.blocks.append(block)
        self.open.append(reader)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.open))
        index = reader.published
        if index == len(reader.blocks):
            return
        self.pages[reader.blocks[index]] = reader.page(index)
        reader.published += 1
        if reader.tail is not None:
            part = reader.tokens[index * SIZE : (index + 1) * SIZE]
            key = reader.chain.key(index, reader.tokens)
            reader.tail = self.cache.commit(reader.tail, key, part, reader.blocks[index])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.open))
        self.open.remove(reader)
        self._leave(reader)

    @precondition(lambda self: self.pool.idle)
    @rule()
    def evict(self) -> None:
        self._evict()

    def _leave(self, reader: Reader) -> None:
        for block in reversed(reader.blocks):
            self.pool.release(block)
            self.cache.released(block)

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "pool"):
            return
        readers = Counter(block for reader in self.open for block in reader.blocks)
        self.pool.validate(dict(readers), self.cache.held())
        order = [entry.key for entry in self.cache.idle()]
        assert len(order) == self.pool.idle
        if not self.open:
            assert self.pool.available == TOTAL


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase
