"""The KV manager under random use, with steps in flight: counts equal tables, and pages hold what they should."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.config import KVConfig, most_live
from octavo.kvcache.block_table import SequenceKV
from octavo.kvcache.group import Group, Window, WindowGroup
from octavo.kvcache.keys import KeyContext
from octavo.kvcache.manager import KVManager, block_tokens, make_kv
from tests.support.ledger import ledger_info

SIZE = 4
PROMPTS = [[1] * 9, [1] * 8 + [2] * 8, [1] * 4 + [3] * 7, [4] * 12]


LEAD = 24
"""Positions in flight at most in these tests."""


def _manager(total: int = 8, groups: int = 1, prefix_cache: bool = True, windows: tuple[int, ...] = ()) -> KVManager:
    full = [Group(total, prefix_cache) for _ in range(groups)]
    some = [WindowGroup(total, prefix_cache, Window(window, most_live(window, LEAD, SIZE))) for window in windows]
    return KVManager([*full, *some], SIZE, KeyContext("w", "n", SIZE))


class Holder:
    """One request: its tokens, and how far its steps have been submitted."""

    def __init__(self, manager: KVManager, tokens: list[int]) -> None:
        self.tokens = list(tokens)
        self.seq: SequenceKV = manager.sequence()
        self.submitted = 0


@dataclass(frozen=True)
class Flying:
    """A step in flight: what it sees, per group and block of the request."""

    step: int
    holder: Holder
    tables: list[dict[int, int]]
    upto: int


class ManagerMachine(RuleBasedStateMachine):
    """`pages` says what each block holds; it is written when a step retires and forgotten when a block is free."""

    groups = 1
    windows: tuple[int, ...] = ()
    total = 8

    def __init__(self) -> None:
        super().__init__()
        self.manager = _manager(self.total, self.groups, windows=self.windows)
        self.holders: list[Holder] = []
        self.flight: list[Flying] = []
        self.step = 0
        self.pages: list[dict[int, list[int]]] = [{} for _ in self.manager.groups]

    @rule(prompt=st.sampled_from(PROMPTS))
    def open(self, prompt: list[int]) -> None:
        holder = Holder(self.manager, prompt)
        before = [group.available for group in self.manager.groups]
        if not self.manager.reserve(holder.seq, holder.tokens, len(prompt)):
            assert before == [group.available for group in self.manager.groups], "a refused promise changes nothing"
            assert holder.seq.num_blocks == 0
            return
        matched = holder.seq.matched
        for number, (group, table) in enumerate(zip(self.manager.groups, holder.seq.tables, strict=True)):
            needed = 0 if group.window is None else max(0, min(matched, len(prompt) - 1) - group.window + 1)
            assert table.left * SIZE <= needed, "what the first position sees was left behind"
            for index in range(table.left, matched // SIZE):
                held = self.pages[number][table.block(index)]
                assert held == prompt[index * SIZE : (index + 1) * SIZE], "a hit holds other tokens"
        holder.submitted = min(matched, len(prompt) - 1)
        self.holders.append(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), count=st.integers(1, 5), token=st.integers(5, 6))
    def grow(self, data: st.DataObject, count: int, token: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        before = [group.available for group in self.manager.groups]
        more = holder.tokens + [token] * count
        if self.manager.reserve(holder.seq, more, len(more)):
            holder.tokens = more
        else:
            assert before == [group.available for group in self.manager.groups]

    @precondition(lambda self: self.holders and len(self.flight) < 2)
    @rule(data=st.data(), count=st.integers(1, LEAD // 2))
    def submit(self, data: st.DataObject, count: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        upto = min(holder.submitted + count, len(holder.tokens))
        if upto == holder.submitted:
            return
        self.manager.advance(holder.seq, upto)
        tables = []
        for group, table in zip(self.manager.groups, holder.seq.tables, strict=True):
            first = 0 if group.window is None else max(0, holder.submitted - group.window + 1) // SIZE
            assert table.left <= first, "a block that this step sees was left behind"
            tables.append({index: table.block(index) for index in range(first, holder.seq.handed)})
        holder.submitted = upto
        holder.seq.last_step = self.step
        self.flight.append(Flying(self.step, holder, tables, upto))
        self.step += 1

    @precondition(lambda self: self.flight)
    @rule()
    def retire(self) -> None:
        flying = self.flight.pop(0)
        holder, upto = flying.holder, flying.upto
        for number, blocks in enumerate(flying.tables):
            free = set(self.manager.groups[number].pool.free_ids())
            if holder not in self.holders:
                assert not free & set(blocks.values()), "a block of a step in flight was freed"
            for index, block in blocks.items():
                if block not in free and index * SIZE < upto:
                    self.pages[number][block] = holder.tokens[index * SIZE : min(upto, (index + 1) * SIZE)]
        if holder in self.holders:
            self.manager.commit(holder.seq, holder.tokens, upto)
            self.manager.slide(holder.seq, min(upto, len(holder.tokens) - 1))
        self.manager.retire(flying.step)

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
            assert self.manager.available == self.total


class TwoGroupsMachine(ManagerMachine):
    groups = 2


class WindowMachine(ManagerMachine):
    groups = 0
    windows = (5,)
    total = 12


class TightWindowMachine(ManagerMachine):
    """One request's claim fills the pool, and prompts share what lies before the window."""

    groups = 0
    windows = (9,)
    total = most_live(9, LEAD, SIZE)


class MixedMachine(ManagerMachine):
    windows = (3, 8)
    total = 14


ManagerMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TwoGroupsMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
WindowMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
TightWindowMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
MixedMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
TestManager = ManagerMachine.TestCase
TestTwoGroups = TwoGroupsMachine.TestCase
TestWindow = WindowMachine.TestCase
TestTightWindow = TightWindowMachine.TestCase
TestMixed = MixedMachine.TestCase


def _computed(manager: KVManager, tokens: list[int]) -> SequenceKV:
    seq = manager.sequence()
    assert manager.reserve(seq, tokens, len(tokens))
    manager.advance(seq, len(tokens))
    manager.commit(seq, tokens, len(tokens))
    return seq


def _promised(manager: KVManager, tokens: list[int], growth: dict[SequenceKV, int] | None = None) -> SequenceKV | None:
    seq = manager.sequence()
    return seq if manager.reserve(seq, tokens, len(tokens), growth) else None


def test_a_match_is_pinned_in_the_call_that_finds_it() -> None:
    manager = _manager(4)
    tokens = [1] * 8
    manager.release(_computed(manager, tokens))
    second = _promised(manager, tokens)
    assert second is not None and second.matched == 8
    assert manager.advance(second, 8) == ((),)
    assert _promised(manager, [9] * 12) is None, "pinned blocks cannot be evicted"
    assert _promised(manager, [9] * 8) is not None
    manager.validate()


def test_a_fresh_request_takes_no_hits_and_keeps_nothing_and_others_hit_what_it_computed() -> None:
    manager = _manager(8)
    tokens = [1] * 8
    manager.release(_computed(manager, tokens))
    seq = manager.sequence(fresh=True)
    assert manager.reserve(seq, tokens + [2] * 4, 12) and seq.matched == 0
    manager.advance(seq, 12)
    manager.commit(seq, tokens + [2] * 4, 12)
    manager.trim(seq, 2)
    assert seq.num_blocks == 0
    manager.validate()
    third = _promised(manager, tokens + [2] * 4)
    assert third is not None and third.matched == 12


def test_a_promise_leaves_room_for_the_growth_of_others() -> None:
    manager = _manager(4)
    other = _promised(manager, [2] * 4)
    assert other is not None
    assert _promised(manager, [1] * 8, {other: 12}) is None
    assert _promised(manager, [1] * 8, {other: 8}) is not None


def test_a_promise_is_kept_whatever_others_ask_for() -> None:
    manager = _manager(4)
    tokens = [1] * 12
    seq = _promised(manager, tokens)
    assert seq is not None and manager.groups[0].pool.free == 4, "blocks are handed out when a step needs them"
    assert _promised(manager, [2] * 8) is None
    assert [len(manager.advance(seq, upto)[0]) for upto in (1, 4, 5, 12)] == [1, 0, 1, 1]
    manager.validate()


def test_keys_are_published_by_commit_and_not_before() -> None:
    manager = _manager()
    tokens = [1] * 8
    seq = _promised(manager, tokens)
    assert seq is not None
    manager.advance(seq, 8)
    other = _promised(manager, tokens)
    assert other is not None and other.matched == 0
    manager.commit(seq, tokens, 7)
    third = _promised(manager, tokens)
    assert third is not None and third.matched == 4, "only full blocks are shared"


def test_released_blocks_are_parked_until_their_step_retires() -> None:
    manager = _manager(2, prefix_cache=False)
    seq = _promised(manager, [1] * 8)
    assert seq is not None
    manager.advance(seq, 8)
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
    seq = _promised(manager, tokens)
    assert seq is not None and seq.matched == 8
    manager.validate()


def _run(manager: KVManager, tokens: list[int], chunk: int) -> tuple[SequenceKV, list[int]]:
    """Computes a request in chunks; the most blocks that each group held."""
    seq = _promised(manager, tokens)
    assert seq is not None
    most = [0] * len(manager.groups)
    done = min(seq.matched, len(tokens) - 1)
    while done < len(tokens):
        done = min(done + chunk, len(tokens))
        manager.advance(seq, done)
        most = [max(a, len(table.blocks)) for a, table in zip(most, seq.tables, strict=True)]
        manager.commit(seq, tokens, done)
        manager.slide(seq, min(done, len(tokens) - 1))
        manager.validate()
    return seq, most


def test_window_layers_hold_a_window_however_long_the_text() -> None:
    manager = _manager(100, windows=(8,), prefix_cache=False)
    seq, most = _run(manager, [1] * 200, chunk=4)
    assert most == [50, 3], "seven positions behind and a chunk ahead"
    assert [len(table.blocks) for table in seq.tables] == [50, 2]
    manager.release(seq)
    assert [group.pool.free for group in manager.groups] == [100, 100]


def test_a_window_pool_of_one_claim_serves_any_length() -> None:
    most = most_live(8, LEAD, SIZE)
    manager = KVManager([Group(50, True), WindowGroup(most, True, Window(8, most))], SIZE, KeyContext("w", "n", SIZE))
    assert manager.capacity_tokens == 50 * SIZE
    for _ in range(2):
        seq, _ = _run(manager, list(range(190)), chunk=LEAD)
        manager.release(seq)
    assert manager.groups[1].available == most


def test_readers_of_one_window_each_go_on_to_blocks_of_their_own() -> None:
    """Four requests share a window's blocks; what each leaves behind the others still read."""
    most = most_live(8, 4, SIZE)
    manager = KVManager([WindowGroup(3 * most, True, Window(8, most))], SIZE, KeyContext("w", "n", SIZE))
    tokens = list(range(200))
    manager.release(_run(manager, tokens[:48], chunk=4)[0])
    open_now = []
    while (seq := _promised(manager, tokens[:48] + [len(open_now)] * 40)) is not None:
        open_now.append(seq)
    assert len(open_now) == 3, "each claims blocks of its own, shared though the first ones are"
    for number, seq in enumerate(open_now):
        whole = tokens[:48] + [number] * 40
        for done in range(52, 89, 4):
            manager.advance(seq, done)
            manager.commit(seq, whole, done)
            manager.slide(seq, done)
            manager.validate()
    for seq in open_now:
        manager.release(seq)
    manager.validate()
    assert manager.available == 3 * most


def test_a_prefix_hit_needs_the_last_window_alone() -> None:
    manager = _manager(100, windows=(8,))
    tokens = list(range(48))
    seq, _ = _run(manager, tokens, chunk=4)
    manager.release(seq)
    for _ in range(9):
        manager.groups[1].cache.evict()
    again = _promised(manager, tokens)
    assert again is not None and again.matched == 48
    assert [table.left for table in again.tables] == [0, 10]
    assert again.tables[1].head(12) == (-1,) * 10 + tuple(again.tables[1].blocks)
    manager.release(again)
    manager.groups[1].cache.evict()
    manager.groups[1].cache.evict()
    shorter = _promised(manager, tokens)
    assert shorter is not None and shorter.matched == 0, "the window before every block is gone"
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
    manager = make_kv(KVConfig(prefix_cache=False), ledger_info(), (4,), 128, lead=64)
    tokens = [1] * 64
    manager.release(_computed(manager, tokens))
    assert manager.groups[0].pool.free == 4
