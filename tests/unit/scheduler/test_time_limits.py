"""Deadlines and the queue's limit end requests with one error that names the limit, wherever they stand."""

from __future__ import annotations

import pytest

from octavo.scheduler.time_limits import TimeLimits
from octavo.types import ErrorCode, FinishReason, NewRequest
from tests.support.engine import Rig
from tests.support.ledger import make_request
from tests.support.traffic import fresh_random, random_tokens


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _rig(max_queue_seconds: float | None = None, **fields: int) -> tuple[Rig, Hands]:
    clock = Hands()
    rig = Rig(pool_tokens=256, max_model_len=224, max_num_batched_tokens=32, **fields)  # type: ignore[arg-type]
    rig.core.scheduler._limits = TimeLimits(max_queue_seconds, clock, lambda: clock.now + 500)
    return rig, clock


def _request(request_id: int, prompt: int = 60, seconds: float | None = None) -> NewRequest:
    deadline = None if seconds is None else 1500 + seconds
    return make_request(request_id, random_tokens(fresh_random(), prompt), 100, ignore_eos=True, deadline=deadline)


@pytest.mark.parametrize("steps", [0, 1, 10])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_deadline_ends_a_request_wherever_it_stands(steps: int, depth: int) -> None:
    rig, clock = _rig(depth=depth)
    rig.send(_request(1, seconds=5), _request(2))
    for _ in range(steps):
        rig.step()
    clock.now += 5
    rig.step()
    final = rig.finals[1]
    assert (final.finish, final.code) == (FinishReason.ERROR, ErrorCode.DEADLINE)
    assert final.error is not None and f"after {len(rig.tokens[1])} of at most 100" in final.error
    rig.run()
    rig.check_answers()
    assert rig.finals[2].finish is FinishReason.LENGTH


def test_a_deadline_that_has_passed_already_ends_a_request_before_it_costs_anything() -> None:
    rig, _ = _rig()
    rig.send(_request(1, seconds=-1))
    rig.run()
    assert rig.finals[1].code is ErrorCode.DEADLINE
    assert rig.stats.prompt_tokens == 0


def test_the_queues_limit_ends_those_that_wait_and_no_others() -> None:
    rig, clock = _rig(max_queue_seconds=2.0, max_num_seqs=1)
    rig.send(_request(1), _request(2))
    rig.step()
    clock.now += 1.5
    rig.send(_request(3))
    clock.now += 0.5
    rig.step()
    assert rig.finals[2].code is ErrorCode.QUEUE_TIMEOUT and "--max-queue-seconds" in str(rig.finals[2].error)
    assert set(rig.finals) == {2}
    rig.run()
    assert rig.finals[1].finish is rig.finals[3].finish is FinishReason.LENGTH
    rig.check_answers()


def test_a_preempted_request_is_not_ended_by_the_queues_limit() -> None:
    rig, clock = _rig(max_queue_seconds=2.0)
    rig.send(_request(1, 100), _request(2, 90))
    while not rig.stats.preemptions:
        rig.step()
    clock.now += 60
    rig.run()
    assert rig.finals[1].finish is rig.finals[2].finish is FinishReason.LENGTH
    rig.check_answers()


def test_a_request_that_ended_in_time_is_left_alone() -> None:
    rig, clock = _rig(max_queue_seconds=2.0)
    rig.send(_request(1, seconds=5))
    rig.run()
    clock.now += 60
    rig.send(_request(2))
    rig.run()
    assert rig.finals[1].finish is rig.finals[2].finish is FinishReason.LENGTH
