"""The block pool against a model: free + used + idle = total, and a block is free exactly when nothing needs it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.kvcache.block_pool import BlockPool

TOTAL = 6


class PoolMachine(RuleBasedStateMachine):
    """Readers and held blocks are counted beside the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.readers: dict[int, int] = {}
        self.held: set[int] = set()

    def _used(self) -> list[int]:
        return sorted(block for block, count in self.readers.items() if count)

    def _idle(self) -> list[int]:
        return sorted(block for block in self.held if not self.readers.get(block))

    @precondition(lambda self: self.pool.free)
    @rule()
    def allocate(self) -> None:
        block = self.pool.allocate()
        assert not self.readers.get(block) and block not in self.held
        self.readers[block] = 1

    @precondition(lambda self: self._used() or self._idle())
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted({*self._used(), *self._idle()})))
        self.pool.share(block)
        self.readers[block] = self.readers.get(block, 0) + 1

    @precondition(lambda self: self._used())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self._used()))
        self.pool.release(block)
        self.readers[block] -= 1

    @precondition(lambda self: set(self._used()) - self.held)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(set(self._used()) - self.held)))
        self.pool.hold(block)
        self.held.add(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.unhold(block)
        self.held.remove(block)

    @invariant()
    def conserved(self) -> None:
        pool = self.pool
        assert pool.free + pool.used + pool.idle == TOTAL
        assert pool.used == len(self._used())
        assert pool.idle == len(self._idle())
        assert pool.available == TOTAL - len(self._used())
        pool.validate({b: n for b, n in self.readers.items() if n}, self.held)


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_a_block_released_too_often_is_noticed() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(block)


def test_a_free_block_cannot_be_shared_or_held() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError):
        pool.share(0)
    with pytest.raises(AssertionError):
        pool.hold(0)


def test_validate_notices_a_lost_and_a_doubled_block() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    with pytest.raises(AssertionError, match="readers"):
        pool.validate({}, set())
    pool.validate({block: 1}, set())
    pool._free_ids.append(block)
    with pytest.raises(AssertionError):
        pool.validate({block: 1}, set())
