"""Room in the queue is known in the API process: refusals come at once and say when to come back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.config import SchedulerConfig
from octavo.server.backlog import Backlog
from octavo.server.errors import ApiError
from octavo.types import EngineStats, NewRequest, StepOutput, TokenDelta
from tests.support.ledger import make_request

STATS = EngineStats(**dict.fromkeys(EngineStats.__struct_fields__, 0) | {"step_prices": (0.0,) * 5})


class Hands:
    """A clock that is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _backlog(**fields: Any) -> tuple[Backlog, Hands]:
    clock = Hands()
    return Backlog(SchedulerConfig(max_num_seqs=2, **fields), clock), clock


def _requests(first: int, count: int, prompt: int = 10) -> list[NewRequest]:
    return [make_request(first + i, [5] * prompt, 4) for i in range(count)]


def _begin(*ids: int) -> StepOutput:
    return StepOutput([TokenDelta(i, [7]) for i in ids], STATS)


def _refusal(backlog: Backlog, num_open: int, requests: int = 0, tokens: int = 0, tenant: str = "") -> ApiError:
    with pytest.raises(ApiError) as caught:
        backlog.check(num_open, tenant, requests, tokens)
    assert caught.value.status == 429 and caught.value.code == "queue_full"
    return caught.value


def test_requests_are_bounded_running_ones_apart() -> None:
    backlog, _ = _backlog(max_queue_requests=3)
    backlog.enter(_requests(0, 4))
    backlog.check(4)
    backlog.check(4, "", 1)
    assert "--max-queue-requests" in _refusal(backlog, 4, 2).message
    backlog.enter(_requests(4, 1))
    assert backlog.full(5)
    _refusal(backlog, 5)


def test_tokens_are_bounded_and_one_request_alone_is_always_taken() -> None:
    backlog, _ = _backlog(max_queue_tokens=100)
    backlog.check(0, "", 1, 5000)
    backlog.enter(_requests(0, 1, prompt=5000))
    assert backlog.full(1)
    assert "--max-queue-tokens" in _refusal(backlog, 1).message
    backlog.step(_begin(0))
    assert backlog.tokens == 0
    backlog.enter(_requests(1, 2, prompt=40))
    backlog.check(3, "", 1, 20)
    _refusal(backlog, 3, 1, 21)


def test_further_choices_of_a_prompt_cost_nearly_nothing() -> None:
    backlog, _ = _backlog(max_queue_tokens=100)
    backlog.enter([make_request(i, [5] * 80, 4, choice=i) for i in range(8)])
    assert backlog.tokens == 87


def test_what_leaves_unheard_is_forgotten() -> None:
    backlog, _ = _backlog()
    requests = _requests(0, 3)
    backlog.enter(requests)
    backlog.step(_begin(1))
    backlog.leave(requests)
    backlog.leave(requests)
    assert (backlog.requests, backlog.tokens) == (0, 0)


def test_retry_after_is_the_time_in_which_those_that_wait_begin() -> None:
    backlog, clock = _backlog(max_queue_requests=10)
    assert backlog.retry_after() == 1
    backlog.enter(_requests(0, 80))
    for i in range(60):
        clock.now += 0.5
        backlog.step(_begin(i))
    assert backlog.retry_after() == 10
    assert _refusal(backlog, 99).retry_after == 10


def test_before_there_is_a_pace_prompts_are_counted() -> None:
    backlog, _ = _backlog(max_queue_requests=10)
    backlog.enter(_requests(0, 40, prompt=500))
    learnt = msgspec.structs.replace(STATS, step_prices=(0.05, 0.001, 0.0, 0.0, 0.0), step_budget=1000)
    backlog.step(StepOutput([], learnt))
    assert backlog.retry_after() == 21  # 20 000 tokens, 20 steps
    backlog.enter(_requests(100, 400, prompt=500))
    assert backlog.retry_after() == 60


def test_a_quiet_hour_is_no_pace() -> None:
    backlog, clock = _backlog()
    for i in range(10):
        clock.now += 360
        backlog.enter(_requests(i, 1))
        backlog.step(_begin(i))
    backlog.enter(_requests(100, 50))
    assert backlog.retry_after() == 1


def test_jobs_that_are_being_made_take_room_until_they_are_made() -> None:
    backlog, _ = _backlog(max_queue_requests=1)
    with backlog.making(0), backlog.making(0), backlog.making(0):
        with pytest.raises(ApiError, match="queue is full"), backlog.making(0):
            pass
        backlog.check(0)  # nobody's body is refused for what may come to nothing
    with backlog.making(2):
        pass
    with pytest.raises(ApiError), backlog.making(3):
        pass


def test_a_tenant_that_fills_the_queue_locks_no_other_out() -> None:
    backlog, _ = _backlog(max_queue_requests=4, max_queue_tokens=100)
    many = [make_request(i, [5] * 10, 4, tenant="many") for i in range(6)]
    backlog.enter(many)
    mine = _refusal(backlog, 6, tenant="many").message
    assert "6 requests wait" in mine and "--max-queue-requests is 4" in mine
    backlog.check(6, "few", 2, 20)
    _refusal(backlog, 6, 3, 30, tenant="few")
    backlog.enter([make_request(9, [5] * 45, 4, tenant="few")])
    theirs = _refusal(backlog, 7, 1, 60, tenant="few").message
    assert "45 of its 105 prompt tokens are yours, 2 tenants wait" in theirs and "--max-queue-tokens is 100" in theirs
    backlog.leave(many)
    backlog.check(1, "few", 1, 55)
    plain, _ = _backlog(max_queue_requests=4, tenant_fairness=False)
    plain.enter(many)
    _refusal(plain, 6, tenant="few")
