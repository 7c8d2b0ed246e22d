"""The KV manager under random use, with steps in flight: counts equal tables, and pages hold what they should."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.config import KVConfig
from octavo.kvcache.block_table import SequenceKV
from octavo.kvcache.keys import KeyContext
from octavo.kvcache.manager import KVManager, block_tokens, make_kv
from tests.support.ledger import ledger_info

SIZE = 4
PROMPTS = [[1] * 9, [1] * 8 + [2] * 8, [1] * 4 + [3] * 7, [4] * 12]


def _manager(total: int = 8, groups: int = 1, prefix_cache: bool = True) -> KVManager:
    return KVManager((total,) * groups, SIZE, prefix_cache, KeyContext("w", "n", SIZE))


class Holder:
    """One request: its tokens, and how far its steps have been submitted and retired."""

    def __init__(self, manager: KVManager, tokens: list[int]) -> None:
        self.tokens = list(tokens)
        self.seq: SequenceKV = manager.sequence()
        self.retired = 0


class ManagerMachine(RuleBasedStateMachine):
    """`pages` says what each block holds; it is written when a step retires and forgotten when a block is free."""

    groups = 1

    def __init__(self) -> None:
        super().__init__()
        self.manager = _manager(groups=self.groups)
        self.holders: list[Holder] = []
        self.flight: list[tuple[int, Holder, SequenceKV, list[list[int]], int]] = []
        self.step = 0
        self.pages: list[dict[int, list[int]]] = [{} for _ in range(self.groups)]

    @rule(prompt=st.sampled_from(PROMPTS))
    def open(self, prompt: list[int]) -> None:
        holder = Holder(self.manager, prompt)
        before = self.manager.available
        blocks = self.manager.reserve(holder.seq, holder.tokens, len(prompt))
        if blocks is None:
            assert before == self.manager.available, "a refused reservation changes nothing"
            assert holder.seq.num_blocks == 0
            return
        holder.retired = holder.seq.matched
        for group, table in enumerate(holder.seq.tables):
            for index in range(holder.seq.matched // SIZE):
                held = self.pages[group][table.blocks[index]]
                assert held == prompt[index * SIZE : (index + 1) * SIZE], "a hit holds other tokens"
        self.holders.append(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), count=st.integers(1, 5), token=st.integers(5, 6))
    def grow_and_submit(self, data: st.DataObject, count: int, token: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        holder.tokens += [token] * count
        before = self.manager.available
        if self.manager.reserve(holder.seq, holder.tokens, len(holder.tokens)) is None:
            del holder.tokens[-count:]
            assert self.manager.available == before
            return
        holder.seq.last_step = self.step
        tables = [list(table.blocks) for table in holder.seq.tables]
        self.flight.append((self.step, holder, holder.seq, tables, len(holder.tokens)))
        self.step += 1

    @precondition(lambda self: self.flight)
    @rule()
    def retire(self) -> None:
        step, holder, seq, tables, upto = self.flight.pop(0)
        free = [set(group.pool.free_ids()) for group in self.manager.groups]
        for group, blocks in enumerate(tables):
            assert not free[group] & set(blocks), "a block of a step in flight was freed"
            for index in range(-(-upto // SIZE)):
                self.pages[group][blocks[index]] = holder.tokens[index * SIZE : min(upto, (index + 1) * SIZE)]
        if holder in self.holders:
            self.manager.commit(seq, holder.tokens, upto)
        self.manager.retire(step)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.manager.release(holder.seq)
        self.manager.release(holder.seq)

    @invariant()
    def consistent(self) -> None:
        self.manager.validate()
        for group in self.manager.groups:
            assert group.pool.free + group.pool.used + group.pool.idle == group.pool.total
        if not self.holders and not self.flight:
            assert self.manager.available == 8


class TwoGroupsMachine(ManagerMachine):
    groups = 2


ManagerMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TwoGroupsMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestManager = ManagerMachine.TestCase
TestTwoGroups = TwoGroupsMachine.TestCase


def _computed(manager: KVManager, tokens: list[int]) -> SequenceKV:
    seq = manager.sequence()
    assert manager.reserve(seq, tokens, len(tokens)) is not None
    manager.commit(seq, tokens, len(tokens))
    return seq


def test_a_match_is_pinned_in_the_call_that_finds_it() -> None:
    manager = _manager(4)
    tokens = [1] * 8
    manager.release(_computed(manager, tokens))
    second = manager.sequence()
    assert manager.reserve(second, tokens, 8) == ((),)
    assert second.matched == 8
    other = manager.sequence()
    assert manager.reserve(other, [9] * 12, 12) is None, "pinned blocks cannot be evicted"
    assert manager.reserve(other, [9] * 8, 8) is not None
    manager.validate()


def test_a_reservation_leaves_the_spare_blocks() -> None:
    manager = _manager(4)
    seq = manager.sequence()
    assert manager.reserve(seq, [1] * 8, 8, spare=3) is None
    assert manager.reserve(seq, [1] * 8, 8, spare=2) is not None


def test_keys_are_published_by_commit_and_not_before() -> None:
    manager = _manager()
    seq = manager.sequence()
    tokens = [1] * 8
    assert manager.reserve(seq, tokens, 8) is not None
    other = manager.sequence()
    assert manager.reserve(other, tokens, 8) is not None
    assert other.matched == 0
    manager.commit(seq, tokens, 7)
    third = manager.sequence()
    assert manager.reserve(third, tokens, 8) is not None
    assert third.matched == 4, "only full blocks are shared"


def test_released_blocks_are_parked_until_their_step_retires() -> None:
    manager = _manager(2, prefix_cache=False)
    seq = manager.sequence()
    assert manager.reserve(seq, [1] * 8, 8) is not None
    seq.last_step = 3
    manager.retire(2)
    manager.release(seq)
    assert (manager.available, manager.has_parked) == (0, True)
    manager.validate()
    manager.retire(3)
    assert (manager.available, manager.has_parked) == (2, False)


def test_a_prefix_counts_only_where_every_group_has_it() -> None:
    manager = _manager(groups=2)
    tokens = [1] * 12
    manager.release(_computed(manager, tokens))
    manager.groups[1].cache.evict()
    seq = manager.sequence()
    assert manager.reserve(seq, tokens, 12) is not None
    assert seq.matched == 8
    manager.validate()


def test_validate_notices_a_page_that_nobody_counts() -> None:
    manager = _manager()
    seq = _computed(manager, [1] * 8)
    seq.tables[0].blocks.pop()
    with pytest.raises(AssertionError):
        manager.validate()


def test_off_switches_come_from_the_configuration() -> None:
    assert block_tokens(KVConfig(block_size=32), 1000) == 32
    assert block_tokens(KVConfig(paged=False), 1000) == 1024
    manager = make_kv(KVConfig(prefix_cache=False), ledger_info(), (4,), 128)
    tokens = [1] * 64
    manager.release(_computed(manager, tokens))
    assert manager.groups[0].pool.free == 4
