"""The ledger itself: it must find the mistakes that it is there to find."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo.kvcache import prefix_cache
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.keys import KeyChain, block_key, pack_tokens, root_key
from octavo.kvcache.manager import KVManager
from octavo.scheduler import scheduler
from octavo.types import NewSlot, SeqWork
from tests.support.engine import Rig
from tests.support.traffic import drive, random_requests


def _noticed(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None]) -> int:
    """In how many of the same runs the mistake is found; without it none of them fails."""
    found = 0
    for spoiled in (False, True):
        if spoiled:
            spoil(monkeypatch)
        for seed in range(20):
            rng = random.Random(seed)
            rig = Rig(pool_tokens=192, max_model_len=160, depth=2, max_num_batched_tokens=48, max_num_seqs=6)
            rig.core._config = rig.config.__class__(model=rig.config.model, validate_kv=False)
            try:
                drive(rig, rng, random_requests(rng, 10), aborts=0.3)
                rig.check_answers()
            except AssertionError:
                assert spoiled
                found += 1
    return found


def test_blocks_freed_while_a_step_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _noticed(monkeypatch, lambda patch: patch.setattr(KVManager, "release", KVManager._empty))


def test_shared_pages_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_store_from(
        slot: int, start: int, count: int, blocks: tuple[tuple[int, ...], ...], *rest: int
    ) -> SeqWork:
        return SeqWork(slot, start, count, blocks, bool(rest[0]))

    assert _noticed(monkeypatch, lambda patch: patch.setattr(scheduler, "SeqWork", without_store_from))


def test_matches_that_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _noticed(
        monkeypatch, lambda patch: patch.setattr(prefix_cache.KeyedPrefixCache, "pin", lambda *_, **__: None)
    )


def test_blocks_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_table(**fields: Any) -> NewSlot:
        fields["cached_blocks"] = tuple(tuple(reversed(blocks)) for blocks in fields["cached_blocks"])
        return NewSlot(**fields)

    assert _noticed(monkeypatch, lambda patch: patch.setattr(scheduler, "NewSlot", reversed_table))


def test_shared_blocks_that_are_freed_with_their_first_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    release = BlockPool.release

    def one_too_many(self: BlockPool, block: int) -> None:
        release(self, block)
        if self.readers(block) == 1:
            release(self, block)

    assert _noticed(monkeypatch, lambda patch: patch.setattr(BlockPool, "release", one_too_many))


def test_keys_that_forget_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchained(self: KeyChain, index: int, tokens: list[int]) -> bytes:
        size = self.context.block_size
        return block_key(root_key(self.context), pack_tokens(tokens[index * size : (index + 1) * size]))

    def trusting(self: prefix_cache.KeyedPrefixCache, chain: KeyChain, tokens: list[int]) -> list[prefix_cache.Entry]:
        found = []
        for index in range(len(tokens) // chain.context.block_size):
            entry = self._entries.get(chain.key(index, tokens))
            if entry is None:
                break
            found.append(entry)
        return found

    def spoil(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(KeyChain, "key", unchained)
        patch.setattr(prefix_cache.KeyedPrefixCache, "match", trusting)

    assert _noticed(monkeypatch, spoil)
