"""Pins: kept until their time is over, within a budget, and never at the cost of a promise."""

from __future__ import annotations

import pytest

from octavo.kvcache.group import Group, Window, WindowGroup
from octavo.kvcache.keys import KeyContext
from octavo.kvcache.manager import KVManager
from octavo.kvcache.pins import MAX_PINS, PinBook
from octavo.types import FinishReason, ListPins, PinPrefix, PinReply, UnpinPrefix
from tests.support.engine import Rig
from tests.support.ledger import make_request
from tests.support.traffic import fresh_random, random_tokens

SIZE = 4


class Desk:
    """A manager, its pins and a clock."""

    def __init__(self, total: int = 16, budget: int = 8, windows: tuple[int, ...] = ()) -> None:
        groups = [Group(total, True), *(WindowGroup(total, True, Window(window, 6)) for window in windows)]
        self.kv = KVManager(groups, SIZE, KeyContext("w", "n", SIZE))
        self.now = 0.0
        self.pins = PinBook(self.kv, budget * SIZE, lambda: self.now)

    def compute(self, *blocks: int) -> list[int]:
        tokens = [block for block in blocks for _ in range(SIZE)]
        seq = self.kv.sequence()
        assert self.kv.reserve(seq, tokens, len(tokens))
        self.kv.advance(seq, len(tokens))
        self.kv.commit(seq, tokens, len(tokens))
        self.kv.release(seq)
        return tokens

    def pin(self, tokens: list[int], name: str = "p", seconds: float = 10.0, **fields: str) -> PinReply:
        reply = self.pins.answer(PinPrefix(call=1, name=name, tokens=tokens, seconds=seconds, **fields))
        self.kv.validate()
        self.pins.validate()
        return reply

    def found(self, tokens: list[int]) -> int:
        """Blocks of a prefix that are cached."""
        return len(self.kv.groups[0].cache.match(self.kv.sequence().chain, tokens))

    def flood(self) -> None:
        """Computes so much else that nothing old is left."""
        for number in range(100, 160):
            self.compute(number, number + 1000)


def test_a_pinned_prefix_outlives_everything_else_until_its_time_is_over() -> None:
    desk = Desk()
    kept, other = desk.compute(1, 2, 3), desk.compute(7, 8)
    reply = desk.pin(kept)
    assert (reply.error, reply.pinned_tokens) == (None, 12)
    assert [(pin.name, pin.tokens, pin.seconds_left) for pin in reply.pins] == [("p", 12, 10.0)]
    desk.flood()
    assert (desk.found(kept), desk.found(other)) == (3, 0)
    desk.now = 9.9
    desk.pins.expire()
    desk.flood()
    assert desk.found(kept) == 3
    desk.now = 10.0
    desk.pins.expire()
    assert desk.pins.answer(ListPins(call=2)).pins == []
    desk.flood()
    assert desk.found(kept) == 0


def test_unpinning_gives_the_blocks_back() -> None:
    desk = Desk()
    kept = desk.compute(1, 2)
    desk.pin(kept)
    assert desk.kv.groups[0].available == 14
    assert desk.pins.answer(UnpinPrefix(call=3, name="p")).pins == []
    assert desk.kv.groups[0].available == 16
    reply = desk.pins.answer(UnpinPrefix(call=4, name="p"))
    assert reply.error is not None and reply.missing


def test_a_pin_of_the_same_name_is_renewed() -> None:
    desk = Desk()
    kept = desk.compute(1, 2)
    desk.pin(kept)
    desk.now = 9.0
    assert desk.pin(kept, seconds=5.0).pinned_tokens == 8
    desk.now = 13.0
    assert len(desk.pins.answer(ListPins(call=1)).pins) == 1
    desk.now = 14.0
    assert desk.pins.answer(ListPins(call=1)).pins == []


def test_pins_that_share_blocks_pay_for_them_once() -> None:
    desk = Desk(budget=4)
    first, second = desk.compute(1, 2, 3), desk.compute(1, 2, 4)
    assert desk.pin(first, "a").error is None
    assert desk.pin(second, "b").pinned_tokens == 16
    third = desk.compute(9)
    reply = desk.pin(third, "c")
    assert reply.error is not None and "--pin-tokens" in reply.error and not reply.missing
    assert desk.found(third) == 1, "a refused pin changes nothing"


@pytest.mark.parametrize(
    ("tokens", "budget", "word"),
    [
        ([1] * 3, 8, "tokens or more"),
        ([1] * 8, 0, "--pin-tokens"),
        ([1] * 40, 8, "--pin-tokens"),
        ([5] * 8, 8, "not in"),
    ],
)
def test_what_cannot_be_pinned_is_refused_in_a_sentence(tokens: list[int], budget: int, word: str) -> None:
    desk = Desk(budget=budget)
    reply = desk.pin(tokens)
    assert reply.error is not None and word in reply.error and reply.error.endswith(".")
    assert reply.missing == (word == "not in")
    assert desk.kv.groups[0].available == 16


def test_pins_are_as_private_as_requests() -> None:
    desk = Desk()
    kept = desk.compute(1, 2)
    assert desk.pin(kept, cache_salt="s").missing
    assert desk.pin(kept, tenant="t").missing
    assert desk.pin(kept).error is None


def test_the_number_of_pins_is_bounded() -> None:
    desk = Desk()
    kept = desk.compute(1)
    for number in range(MAX_PINS):
        assert desk.pin(kept, f"p{number}").error is None
    reply = desk.pin(kept, "one more")
    assert reply.error is not None and str(MAX_PINS) in reply.error
    assert desk.pin(kept, "p0").error is None, "renewing one is no new one"


def test_requests_are_measured_against_what_pins_leave() -> None:
    assert Desk(16, budget=8).kv.capacity_tokens == 8 * SIZE
    assert Desk(16, budget=0).kv.capacity_tokens == 16 * SIZE
    assert Desk(16, budget=8, windows=(6,)).kv.capacity_tokens == 8 * SIZE


def test_a_promise_is_not_broken_by_a_pin() -> None:
    desk = Desk(total=8, budget=4)
    kept = desk.compute(1, 2, 3)
    seq = desk.kv.sequence()
    assert desk.kv.reserve(seq, [9] * 24, 24), "requests may use what pins do not hold yet"
    assert desk.pin(kept).missing, "there is no room now"
    desk.kv.release(seq)
    assert desk.pin(kept).error is None


def test_pins_hold_the_windows_of_window_groups_too() -> None:
    desk = Desk(windows=(6,))
    kept = desk.compute(1, 2, 3, 4)
    assert desk.pin(kept).error is None
    desk.flood()
    seq = desk.kv.sequence()
    assert desk.kv.reserve(seq, [*kept, 5], len(kept) + 1)
    assert seq.matched == len(kept)
    desk.kv.release(seq)
    desk.pins.answer(UnpinPrefix(call=1, name="p"))
    desk.kv.validate()
    assert [group.available for group in desk.kv.groups] == [16, 16]


def test_an_engine_under_pressure_serves_everybody_beside_its_pins() -> None:
    rng = fresh_random()
    rig = Rig(pool_tokens=320, max_model_len=320, max_num_batched_tokens=64, pin_tokens=160)
    prefix = random_tokens(rng, 128)
    rig.send(make_request(0, prefix, 1, ignore_eos=True))
    rig.run()
    rig.core.handle(PinPrefix(call=1, name="p", tokens=prefix, seconds=1e6))
    (reply,) = rig.core.take_replies()
    assert reply.error is None and reply.pinned_tokens == 128
    assert rig.limit == 160, "an answer ends where pins may begin"
    for number in range(1, 13):
        rig.send(make_request(number, random_tokens(rng, rng.randrange(1, 60)), 200, ignore_eos=True))
    rig.send(make_request(13, [*prefix, 7], 5, ignore_eos=True))
    rig.run()
    assert rig.stats.preemptions > 0
    assert rig.cached[13] == 128
    assert all(final.finish is FinishReason.LENGTH for final in rig.finals.values())
    rig.core.handle(UnpinPrefix(call=2, name="p"))
    rig.check_answers()
