"""The prefix cache: what is found, what is evicted first, and its null twin."""

from __future__ import annotations

import pytest

from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.eviction import CostRecency
from octavo.kvcache.keys import KeyChain, KeyContext
from octavo.kvcache.prefix_cache import KeyedPrefixCache, NoPrefixCache, Parent, make_prefix_cache

SIZE = 4
CONTEXT = KeyContext("w", "n", SIZE)


class Shelf:
    """A pool and its cache, used as the manager uses them."""

    def __init__(self, total: int = 16) -> None:
        self.pool = BlockPool(total)
        self.cache = KeyedPrefixCache(self.pool, CostRecency(total))

    def publish(self, tokens: list[int], context: KeyContext = CONTEXT) -> list[int]:
        """Computes and publishes all full blocks of `tokens`; returns their ids, still read."""
        chain = KeyChain(context)
        parent: Parent | None = context
        blocks = []
        for index in range(len(tokens) // SIZE):
            block = self.pool.allocate()
            blocks.append(block)
            if parent is not None:
                part = tokens[index * SIZE : (index + 1) * SIZE]
                parent = self.cache.commit(parent, chain.key(index, tokens), part, block)
        return blocks

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.pool.release(block)
            self.cache.released(block)

    def find(self, tokens: list[int], context: KeyContext = CONTEXT) -> list[int]:
        return [entry.block for entry in self.cache.match(KeyChain(context), tokens)]

    def evict(self) -> None:
        self.cache.evict()
        self.cache.held()


def _tokens(*blocks: int) -> list[int]:
    return [block for block in blocks for _ in range(SIZE)]


def test_the_longest_run_of_full_blocks_is_found() -> None:
    shelf = Shelf()
    blocks = shelf.publish(_tokens(1, 2, 3))
    assert shelf.find(_tokens(1, 2, 3, 4)) == blocks
    assert shelf.find(_tokens(1, 2, 9, 3)) == blocks[:2]
    assert shelf.find(_tokens(1, 2)[:-1]) == blocks[:1]
    assert shelf.find(_tokens(2, 3)) == []
    assert shelf.find(_tokens(1, 2), KeyContext("w", "n", SIZE, salt="s")) == []


def test_leaves_go_before_their_parents_and_the_least_recently_used_first() -> None:
    shelf = Shelf()
    shelf.release(shelf.publish(_tokens(1, 2, 3)))
    shelf.release(shelf.publish(_tokens(7, 8)))
    entries = shelf.cache.match(KeyChain(CONTEXT), _tokens(1, 2))
    shelf.cache.pin(entries)
    shelf.release([entry.block for entry in entries])
    for expected in ([1, 2], [7], [], []):
        shelf.evict()
        if expected == [1, 2]:
            assert len(shelf.find(_tokens(1, 2, 3))) == 2
        if expected == [7]:
            assert len(shelf.find(_tokens(7, 8))) == 1
    assert shelf.find(_tokens(7, 8)) == []
    assert len(shelf.find(_tokens(1, 2))) == 1, "the most recently used root is left"
    assert shelf.pool.idle == 1


def test_a_pinned_block_is_never_evicted() -> None:
    shelf = Shelf(4)
    shelf.release(shelf.publish(_tokens(1, 2, 3)))
    shelf.cache.pin(shelf.cache.match(KeyChain(CONTEXT), _tokens(1, 2)))
    shelf.evict()
    assert shelf.pool.idle == 0
    with pytest.raises(StopIteration):
        shelf.cache.evict()
    assert len(shelf.find(_tokens(1, 2, 3))) == 2


def test_a_block_computed_twice_stays_private_and_its_successors_are_shared() -> None:
    shelf = Shelf()
    first = shelf.publish(_tokens(1, 2))
    second = shelf.publish(_tokens(1, 2, 3))
    assert shelf.find(_tokens(1, 2, 3)) == [*first, second[2]]
    shelf.release(second)
    assert shelf.pool.idle == 1
    shelf.release(first)
    assert shelf.pool.idle == 3
    shelf.cache.held()


def test_evicting_below_a_block_in_use_takes_the_subtree_out_of_the_cache() -> None:
    shelf = Shelf()
    first = shelf.publish(_tokens(1, 2))
    second = shelf.publish(_tokens(1, 2, 3, 4))
    shelf.release(first)
    assert shelf.pool.idle == 2
    shelf.evict()
    assert shelf.find(_tokens(1, 2, 3, 4)) == first[:1]
    assert len(shelf.cache) == 1
    shelf.release(second)
    assert shelf.pool.free == 15, "blocks that left the cache are free once they are released"
    shelf.evict()
    assert shelf.pool.free == 16


def test_nothing_is_published_below_an_evicted_parent() -> None:
    shelf = Shelf()
    chain = KeyChain(CONTEXT)
    tokens = _tokens(1, 2)
    block = shelf.pool.allocate()
    parent = shelf.cache.commit(CONTEXT, chain.key(0, tokens), tokens[:SIZE], block)
    assert parent is not None
    shelf.release([block])
    shelf.evict()
    assert shelf.cache.commit(parent, chain.key(1, tokens), tokens[SIZE:], shelf.pool.allocate()) is None
    assert len(shelf.cache) == 0


def test_the_null_twin_finds_and_keeps_nothing() -> None:
    pool = BlockPool(2)
    cache = make_prefix_cache(False, pool)
    assert isinstance(cache, NoPrefixCache)
    block = pool.allocate()
    assert cache.commit(CONTEXT, b"k", [1] * SIZE, block) is None
    assert cache.match(KeyChain(CONTEXT), [1] * SIZE) == []
    pool.release(block)
    cache.released(block)
    assert (pool.free, len(cache), cache.held()) == (2, 0, set())
