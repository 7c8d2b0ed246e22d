"""The KV manager under random use with pins: they stay, they stay within their budget, and no promise is broken."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from octavo.kvcache.pins import PinBook
from octavo.types import ListPins, PinPrefix, UnpinPrefix
from tests.unit.kvcache.test_manager import PROMPTS, SIZE, ManagerMachine


class PinnedMachine(ManagerMachine):
    """Adds pins and a clock to the manager's machine."""

    total = 12
    budget = 4

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pins = PinBook(self.manager, self.budget * SIZE, lambda: self.now)
        self.pinned: dict[str, tuple[list[int], float]] = {}

    @rule(prompt=st.sampled_from(PROMPTS), name=st.sampled_from("ab"), seconds=st.integers(1, 9))
    def pin(self, prompt: list[int], name: str, seconds: int) -> None:
        self._expire()
        before = [group.available for group in self.manager.groups]
        reply = self.pins.answer(PinPrefix(call=1, name=name, tokens=prompt, seconds=float(seconds)))
        if reply.error is None:
            self.pinned[name] = (prompt[: len(prompt) // SIZE * SIZE], self.now + seconds)
        else:
            assert before == [group.available for group in self.manager.groups], "a refused pin changes nothing"

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        self._expire()
        if self.pinned:
            name = data.draw(st.sampled_from(sorted(self.pinned)))
            assert self.pins.answer(UnpinPrefix(call=1, name=name)).error is None
            del self.pinned[name]

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self._expire()

    def _expire(self) -> None:
        self.pinned = {name: pin for name, pin in self.pinned.items() if pin[1] > self.now}
        told = self.pins.answer(ListPins(call=1)).pins
        assert sorted(pin.name for pin in told) == sorted(self.pinned)

    @invariant()
    def consistent(self) -> None:
        self.manager.validate()
        self.pins.validate()
        cache = self.manager.groups[0].cache
        for tokens, _ in self.pinned.values():
            found = cache.match(self.manager.sequence().chain, tokens)
            assert len(found) == len(tokens) // SIZE, "a pinned prefix was evicted"
        assert all(0 <= left <= self.budget for left in self.manager.headroom)
        if not self.holders and not self.flight:
            assert self.manager.available >= self.total - self.budget


class PinnedWindowMachine(PinnedMachine):
    windows = (5,)
    total = 16


PinnedMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
PinnedWindowMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestPinned = PinnedMachine.TestCase
TestPinnedWindow = PinnedWindowMachine.TestCase
