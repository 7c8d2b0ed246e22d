"""What is given up first: worth, order, and that only leaves go. The queue against a plain list."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.eviction import CostRecency, Evictable, IdleLeaves, Recency, make_retention
from octavo.kvcache.keys import KeyChain, KeyContext
from octavo.kvcache.prefix_cache import AnyEntry, Entry, KeyedPrefixCache, Parent, WindowPrefixCache

SIZE = 4
CONTEXT = KeyContext("w", "n", SIZE)


def _publish(pool: BlockPool, cache: KeyedPrefixCache | WindowPrefixCache, tokens: list[int]) -> None:
    """One request with the machine to itself, as the manager would drive it."""
    chain = KeyChain(CONTEXT)
    found = [entry for entry in cache.match(chain, tokens) if entry is not None]
    cache.pin(found)
    parent: Parent | None = found[-1] if found else CONTEXT
    blocks = [entry.block for entry in found]
    for index in range(len(found), len(tokens) // SIZE):
        while not pool.free:
            cache.evict()
        blocks.append(pool.allocate())
        assert parent is not None
        part = tokens[index * SIZE : (index + 1) * SIZE]
        parent = cache.commit(parent, chain.key(index, tokens), part, blocks[-1])
    for block in reversed(blocks):
        pool.release(block)
        cache.released(block)


def _tokens(*blocks: int) -> list[int]:
    return [block for block in blocks for _ in range(SIZE)]


def _fill(total: int, retention: str = "cost") -> tuple[BlockPool, KeyedPrefixCache]:
    pool = BlockPool(total)
    return pool, KeyedPrefixCache(pool, make_retention(retention, total))


def _has(cache: KeyedPrefixCache, tokens: list[int]) -> int:
    return len(cache.match(KeyChain(CONTEXT), tokens))


def test_worth_grows_with_use_with_hits_and_with_position() -> None:
    worth = CostRecency(100)
    assert worth(11, 0, 0) > worth(10, 0, 0)
    assert worth(10, 1, 0) == 50
    assert worth(10, 2, 0) > worth(10, 1, 0)
    assert worth(10, 3, 0) == worth(10, 2, 0), "a popular entry is not kept for ever"
    assert worth(10, 1, 4096) > worth(10, 1, 0)
    assert Recency()(10, 5, 5) == Recency()(11, 0, 0)


def test_an_entry_that_was_found_outlives_newer_ones_that_were_not() -> None:
    pool, cache = _fill(8)
    for number in (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10):
        _publish(pool, cache, _tokens(number))
    assert _has(cache, _tokens(1)) == 1
    pool, cache = _fill(8, "lru")
    for number in (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10):
        _publish(pool, cache, _tokens(number))
    assert _has(cache, _tokens(1)) == 0


def test_an_entry_nobody_asks_for_any_more_goes_in_the_end() -> None:
    pool, cache = _fill(8)
    for _ in range(50):
        _publish(pool, cache, _tokens(1))
    for number in range(2, 30):
        _publish(pool, cache, _tokens(number))
    assert _has(cache, _tokens(1)) == 0


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=25), st.booleans())
def test_a_parent_never_goes_before_its_children(prompts: list[list[int]], lru: bool) -> None:
    pool, cache = _fill(8, "lru" if lru else "cost")
    gone: list[AnyEntry] = []

    def watch(entry: AnyEntry) -> None:
        assert isinstance(entry, Entry) and not entry.children
        assert pool.is_idle(entry.block), "spilled while its block holds what it did"
        gone.append(entry)

    cache.spill = watch
    for prompt in prompts:
        _publish(pool, cache, _tokens(*prompt))
        cache.held()
    assert cache.evictions == len(gone)
    expected = list(cache.idle())
    assert len(expected) == pool.idle
    order = {entry.key: place for place, entry in enumerate(expected)}
    for entry in expected:
        assert isinstance(entry, Entry)
        assert entry.index == 0 or order[entry.above] < order[entry.key], "parents come first"
    gone.clear()
    while pool.idle:
        cache.evict()
        cache.held()
    assert gone == expected[::-1], "what is saved first is what would have stayed longest"


def test_a_window_groups_entries_go_by_age_and_are_spilled_too() -> None:
    pool = BlockPool(4)
    cache = WindowPrefixCache(pool)
    gone: list[AnyEntry] = []
    cache.spill = gone.append
    _publish(pool, cache, _tokens(1, 2))
    _publish(pool, cache, _tokens(3))
    saved = list(cache.idle())
    while pool.idle:
        cache.evict()
    assert gone == saved[::-1] and cache.evictions == 3
    assert all(entry.above and entry.key and entry.packed for entry in gone)


@given(st.randoms(use_true_random=True))
def test_the_queue_gives_the_least_whatever_leaves_it_meanwhile(rng: random.Random) -> None:
    queue = IdleLeaves()
    there: list[Evictable] = []
    for ticket in range(1, 400):
        if there and rng.random() < 0.45:
            entry = rng.choice(there)
            there.remove(entry)
            queue.remove(entry)
            queue.remove(entry)
        else:
            entry = Evictable()
            entry.value, entry.ticket = float(rng.randrange(5)), ticket
            there.append(entry)
            queue.add(entry)
        least = min(there, key=lambda e: (e.value, e.ticket), default=None)
        assert queue.first() is least
        assert len(queue) == len(there)
        assert len(queue._items) <= 2 * len(there) + 66, "what has left is cleared away"
