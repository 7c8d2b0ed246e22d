"""Abort in every state, in flight or not: exactly one final delta, and the pool is full again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.scheduler.state import Status
from octavo.types import Abort, Drain, FinishReason, Shutdown
from tests.support.engine import Rig
from tests.support.ledger import make_request
from tests.support.traffic import fresh_random, random_tokens

TARGET = 0


def _rig(depth: int, **fields: int) -> Rig:
    return Rig(pool_tokens=256, max_model_len=224, depth=depth, max_num_batched_tokens=32, **fields)  # type: ignore[arg-type]


def _status(rig: Rig) -> Status | None:
    request = rig.core.scheduler.find(TARGET)
    return None if request is None else request.status


def _step_until(rig: Rig, reached: Callable[[], bool]) -> None:
    for _ in range(500):
        if reached():
            return
        rig.step()
    raise AssertionError("the state was not reached")


def _waiting(depth: int) -> Rig:
    rng = fresh_random()
    rig = _rig(depth, max_num_seqs=1)
    rig.send(make_request(1, random_tokens(rng, 60), 40, ignore_eos=True))
    rig.step()
    rig.send(make_request(TARGET, random_tokens(rng, 60), 40, ignore_eos=True))
    rig.step()
    assert _status(rig) is Status.WAITING
    return rig


def _never_stepped(depth: int) -> Rig:
    rig = _rig(depth)
    rig.send(make_request(TARGET, random_tokens(fresh_random(), 60), 40))
    return rig


def _mid_prompt(depth: int) -> Rig:
    rig = _rig(depth)
    rig.send(make_request(TARGET, random_tokens(fresh_random(), 150), 40, ignore_eos=True))
    rig.step()
    rig.step()
    request = rig.core.scheduler.find(TARGET)
    assert request is not None and 0 < request.num_computed < request.num_prompt
    return rig


def _decoding(depth: int) -> Rig:
    rig = _rig(depth)
    rig.send(make_request(TARGET, random_tokens(fresh_random(), 50), 40, ignore_eos=True))
    _step_until(rig, lambda: len(rig.tokens[TARGET]) >= 3)
    return rig


def _cached_prompt(depth: int) -> Rig:
    rng = fresh_random()
    rig = _rig(depth)
    prompt = random_tokens(rng, 64)
    rig.send(make_request(1, prompt, 2, ignore_eos=True))
    rig.run()
    rig.send(make_request(2, random_tokens(rng, 40), 60, ignore_eos=True))
    rig.send(make_request(TARGET, prompt, 40, ignore_eos=True))
    _step_until(rig, lambda: rig.cached.get(TARGET) == 63)
    return rig


def _preempted(depth: int) -> Rig:
    rng = fresh_random()
    rig = _rig(depth)
    rig.send(make_request(1, random_tokens(rng, 100), 120, ignore_eos=True))
    rig.send(make_request(TARGET, random_tokens(rng, 90), 100, ignore_eos=True))
    _step_until(rig, lambda: _status(rig) is Status.PREEMPTED)
    return rig


def _resumed(depth: int) -> Rig:
    rig = _preempted(depth)
    _step_until(rig, lambda: _status(rig) is Status.RUNNING)
    rig.step()
    return rig


STATES = [_never_stepped, _waiting, _mid_prompt, _decoding, _cached_prompt, _preempted, _resumed]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("times", [1, 2])
def test_abort_gives_one_final_delta_and_the_blocks_back(state: Callable[[int], Rig], depth: int, times: int) -> None:
    rig = state(depth)
    for _ in range(times):
        rig.send(Abort([TARGET, 77, TARGET]))
    rig.run()
    assert rig.finals[TARGET].finish is FinishReason.ABORT
    rig.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("state", STATES)
def test_abort_after_the_end_is_ignored(state: Callable[[int], Rig], depth: int) -> None:
    rig = state(depth)
    rig.run()
    finals = dict(rig.finals)
    rig.send(Abort([TARGET, 77]))
    assert not rig.core.has_work
    assert rig.finals == finals
    rig.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("state", STATES)
def test_shutdown_answers_everybody(state: Callable[[int], Rig], depth: int) -> None:
    rig = state(depth)
    rig.send(Shutdown())
    rig.run()
    assert rig.core.finished
    assert rig.finals[TARGET].finish is FinishReason.ABORT
    rig.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("state", STATES)
def test_a_request_that_fails_in_any_state_leaves_nothing_behind(state: Callable[[int], Rig], depth: int) -> None:
    rig = state(depth)
    rig.ledger.failing = {TARGET}
    rig.run()
    assert rig.finals[TARGET].finish is FinishReason.ERROR
    rig.check_answers()


def test_drain_finishes_the_open_requests_and_refuses_new_ones() -> None:
    rig = _decoding(1)
    rig.send(Drain(), make_request(5, [7], 3))
    assert not rig.core.finished
    rig.run()
    assert rig.core.finished
    assert rig.finals[TARGET].finish is FinishReason.LENGTH
    assert rig.finals[5].finish is FinishReason.ERROR
    rig.check_answers()


def test_a_duplicate_id_leaves_the_live_request_alone() -> None:
    rig = _decoding(1)
    rig.core.handle(make_request(TARGET, [9, 9, 9], 5))
    rig.run()
    assert rig.finals[TARGET].finish is FinishReason.LENGTH
    rig.check_answers()
