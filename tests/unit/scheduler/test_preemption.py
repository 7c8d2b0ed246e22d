"""Partial preemption keeps what it can and changes no answer; priorities preempt; nothing goes back and forth."""

from __future__ import annotations

import pytest

from octavo.scheduler.state import Status
from octavo.types import FinishReason
from tests.support.engine import Rig
from tests.support.ledger import make_request
from tests.support.traffic import drive, fresh_random, random_requests, random_tokens
from tests.unit.scheduler.test_scheduler import Bench


def _pressed(partial: bool, prefix_cache: bool = False, depth: int = 1, **fields: object) -> Rig:
    """Two long requests in a pool that holds one and a half."""
    rng = fresh_random()
    rig = Rig(
        pool_tokens=384,
        max_model_len=320,
        max_num_batched_tokens=64,
        depth=depth,
        prefix_cache=prefix_cache,
        partial_preemption=partial,
        **fields,  # type: ignore[arg-type]
    )
    rig.send(*[make_request(i, random_tokens(rng, 150), 100, ignore_eos=True) for i in range(2)])
    rig.run()
    rig.check_answers()
    assert rig.stats.preemptions == 1
    return rig


@pytest.mark.parametrize("depth", [1, 2])
def test_a_victims_beginning_is_not_computed_again(depth: int) -> None:
    whole, partial = _pressed(False, depth=depth), _pressed(True, depth=depth)
    assert whole.stats.recomputed_tokens >= 150
    assert partial.stats.recomputed_tokens < whole.stats.recomputed_tokens / 2
    assert partial.stats.steps <= whole.stats.steps


def test_what_a_victim_keeps_is_no_hit() -> None:
    rig = _pressed(True, prefix_cache=True)
    assert rig.stats.cached_prompt_tokens == 0
    assert all(rig.cached[i] == 0 for i in range(2))


def test_where_a_window_has_moved_on_all_of_it_goes() -> None:
    rig = _pressed(True, windows=(16,))
    assert rig.stats.recomputed_tokens >= 150


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize(("depth", "windows"), [(1, ()), (2, ()), (1, (40,)), (2, (8, 70))])
def test_pressure_and_aborts_change_no_answer(partial: bool, depth: int, windows: tuple[int, ...]) -> None:
    rng = fresh_random()
    preemptions = 0
    for _ in range(6):
        rig = Rig(
            pool_tokens=rng.choice([224, 256, 320]),
            max_model_len=192,
            depth=depth,
            windows=windows,
            partial_preemption=partial,
            prefix_cache=rng.random() < 0.5,
            max_num_seqs=rng.choice([4, 8]),
            max_num_batched_tokens=rng.choice([16, 64]),
        )
        drive(rig, rng, random_requests(rng, 12), aborts=0.02)
        rig.check_answers()
        preemptions += rig.stats.preemptions
    assert preemptions


def test_a_request_of_higher_priority_takes_a_place_from_a_lower_one() -> None:
    bench = Bench(order="priority", max_num_seqs=2)
    low, mid = bench.add(1, 10, priority=2), bench.add(2, 10, priority=1)
    bench.step()
    high = bench.add(3, 10, priority=0)
    bench.step()
    assert (low.status, mid.status, high.status) == (Status.PREEMPTED, Status.RUNNING, Status.RUNNING)
    equal = bench.add(4, 10, priority=1)
    bench.step()
    assert equal.status is Status.WAITING


def test_a_request_of_higher_priority_takes_pages_from_lower_ones() -> None:
    bench = Bench(blocks=8, prefix_cache=False, order="priority")
    lows = [bench.add(i, 60, priority=1) for i in range(4)]
    bench.step()
    assert all(request.status is Status.RUNNING for request in lows)
    high = bench.add(9, 100)
    bench.step()
    assert high.status is Status.RUNNING
    assert [request.status is Status.PREEMPTED for request in lows] == [False, False, True, True]


def test_nobody_is_sent_away_where_that_would_not_make_room() -> None:
    bench = Bench(blocks=8, prefix_cache=False, order="priority")
    low, other = bench.add(1, 60, priority=1), bench.add(2, 150, priority=-1)
    bench.step()
    high = bench.add(3, 120, priority=-1)
    bench.step()
    assert (low.status, other.status, high.status) == (Status.RUNNING, Status.RUNNING, Status.WAITING)


def test_priorities_do_not_count_between_tenants() -> None:
    bench = Bench(order="priority", max_num_seqs=1)
    low = bench.add(1, 10, priority=1, tenant="a")
    bench.step()
    bench.add(2, 10, priority=-1, tenant="b")
    bench.step()
    assert low.status is Status.RUNNING


def test_even_the_lowest_priority_is_served_under_steady_higher_ones() -> None:
    rig = Rig(pool_tokens=1024, max_num_seqs=1)
    rig.send(make_request(0, [5] * 3, 1, priority=1, ignore_eos=True))
    sent = 0
    while 0 not in rig.finals:
        while len(rig.core.scheduler.waiting) < 4:
            sent += 1
            rig.send(make_request(sent, [5] * 3, 1, ignore_eos=True))
        rig.step()
        assert sent < 300, "256 arrivals are what one step of priority is worth"
    assert sent > 200
    rig.run()


def test_new_requests_leave_the_watermark_to_those_that_run() -> None:
    bench = Bench(blocks=10, prefix_cache=False, watermark=0.2)
    first = bench.add(1, 200)
    bench.step()
    second = bench.add(2, 60)
    bench.step()
    assert (first.status, second.status) == (Status.RUNNING, Status.WAITING)
    alone = Bench(blocks=10, prefix_cache=False, watermark=0.2)
    big = alone.add(1, 310, 8)
    alone.step()
    assert big.status is Status.RUNNING, "a request alone may have the whole pool"


def test_out_of_memory_is_an_outcome() -> None:
    """More than fits, again and again: everybody gets an answer, nobody an error."""
    rng = fresh_random()
    rig = Rig(pool_tokens=160, max_model_len=1024, max_num_batched_tokens=32)
    rig.send(*[make_request(i, random_tokens(rng, 100), 500, ignore_eos=True) for i in range(6)])
    rig.run()
    rig.check_answers()
    assert all(final.finish is FinishReason.LENGTH for final in rig.finals.values())
