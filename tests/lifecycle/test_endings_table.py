"""The lifecycle table of the engine: every way to end a request from outside x every state that it may be in x where
its step is. Exactly one final delta each, every block free, and the counters tell what was sent.

A client that goes away is an abort to the engine; tests/server/test_disconnects.py has the client's side.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from octavo.scheduler.state import Status
from octavo.scheduler.time_limits import TimeLimits
from octavo.types import Abort, ErrorCode, FinishReason, NewRequest
from tests.support.engine import Rig
from tests.support.held import Held
from tests.support.ledger import make_request
from tests.support.traffic import fresh_random, random_tokens

TARGET = 0
DEADLINE = 500.0


class Case:
    """A rig, the requests that will be ended, and a clock that stands still until it is moved."""

    def __init__(self, depth: int, **fields: int) -> None:
        self.now = 1000.0
        self.rng = fresh_random()
        self.rig = Rig(pool_tokens=256, max_model_len=224, depth=depth, max_num_batched_tokens=32, **fields)  # type: ignore[arg-type]
        self.held = Held(self.rig.ledger)
        self.rig.core._executor = self.held
        self.rig.core.scheduler._limits = TimeLimits(None, lambda: self.now, lambda: self.now)
        self.targets = [TARGET]

    def target(self, prompt: int, answer: int, request_id: int = TARGET, tokens: list[int] | None = None) -> NewRequest:
        tokens = tokens or random_tokens(self.rng, prompt)
        return make_request(request_id, tokens, answer, ignore_eos=True, deadline=self.now + DEADLINE)

    def other(self, prompt: int, answer: int) -> NewRequest:
        return make_request(100, random_tokens(self.rng, prompt), answer, ignore_eos=True)

    def until(self, reached: Callable[[], bool]) -> None:
        for _ in range(500):
            if reached():
                return
            self.rig.step()
        raise AssertionError("the state was not reached")

    def status(self) -> Status | None:
        request = self.rig.core.scheduler.find(TARGET)
        return None if request is None else request.status


def _queued(depth: int) -> Case:
    case = Case(depth, max_num_seqs=1)
    case.rig.send(case.other(60, 60))
    case.rig.step()
    case.rig.send(case.target(60, 40))
    case.rig.step()
    assert case.status() is Status.WAITING
    return case


def _prefilling(depth: int) -> Case:
    case = Case(depth)
    case.rig.send(case.target(180, 30), case.other(20, 60))
    case.rig.step()
    case.rig.step()
    request = case.rig.core.scheduler.find(TARGET)
    assert request is not None and 0 < request.num_computed < request.num_prompt
    return case


def _decoding(depth: int) -> Case:
    case = Case(depth)
    case.rig.send(case.target(50, 60), case.other(20, 60))
    case.until(lambda: len(case.rig.tokens[TARGET]) >= 3)
    return case


def _preempted(depth: int) -> Case:
    case = Case(depth)
    case.rig.send(case.other(100, 120), case.target(90, 100))
    case.until(lambda: case.status() is Status.PREEMPTED)
    return case


def _finishing(depth: int) -> Case:
    """One more token is its last."""
    case = Case(depth)
    case.rig.send(case.target(40, 5), case.other(20, 60))
    case.until(lambda: len(case.rig.tokens[TARGET]) == 5 - depth)
    return case


def _choices(depth: int) -> Case:
    """n = 3: one prompt, some choices still in their prompt."""
    case = Case(depth, max_num_seqs=3)
    prompt = random_tokens(case.rng, 70)
    case.targets = [TARGET, 1, 2]
    case.rig.send(*[case.target(70, 30, i, prompt) for i in case.targets], case.other(10, 20))
    case.until(lambda: len(case.rig.tokens[TARGET]) >= 2)
    return case


STATES = [_queued, _prefilling, _decoding, _preempted, _finishing, _choices]


@dataclass(frozen=True)
class Place:
    """Where the newest step is when the event comes."""

    depth: int
    running: bool
    """The engine waits for a step's result; what comes meanwhile is handled after it."""


PLACES = {
    "between steps": Place(1, False),
    "while a step runs": Place(1, True),
    "one step in flight": Place(2, False),
    "two steps in flight, one of them waited for": Place(2, True),
}


def _abort(case: Case) -> None:
    case.rig.send(Abort(case.targets))


def _time_out(case: Case) -> None:
    case.now += DEADLINE


@pytest.mark.parametrize("event", [_abort, _time_out])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("state", STATES)
def test_one_final_reply_all_blocks_back_and_counters_that_agree(
    state: Callable[[int], Case], place: str, event: Callable[[Case], None]
) -> None:
    where = PLACES[place]
    case = state(where.depth)
    rig = case.rig
    if where.running:
        _while_a_step_runs(case, lambda: event(case) if event is _time_out else None)
        if event is _abort:
            event(case)
    else:
        event(case)
    rig.run()
    late = state is _finishing
    for target in case.targets:
        final = rig.finals[target]
        if late and final.finish is FinishReason.LENGTH:
            assert len(rig.tokens[target]) == 5, "it was over before the event came"
        elif event is _abort:
            assert final.finish is FinishReason.ABORT
        else:
            assert (final.finish, final.code) == (FinishReason.ERROR, ErrorCode.DEADLINE)
    assert rig.finals[100].finish is FinishReason.LENGTH, "another request suffered"
    rig.check_answers()
    assert (rig.stats.running, rig.stats.waiting) == (0, 0)
    assert rig.stats.kv_blocks_free == rig.stats.kv_blocks_total
    assert rig.stats.generated_tokens == sum(map(len, rig.tokens.values()))


def _while_a_step_runs(case: Case, event: Callable[[], None]) -> None:
    """Holds a step in flight, lets the event happen, and sees that nothing is freed or said before the step is over."""
    failures: list[BaseException] = []

    def step() -> None:
        asked = case.held.asked
        try:
            while case.held.asked == asked:
                case.rig.step()
        except BaseException as error:
            failures.append(error)

    case.held.hold()
    engine = threading.Thread(target=step)
    engine.start()
    case.held.wait_held()
    used = [group.pool.used for group in case.rig.core.kv.groups]
    event()
    assert [group.pool.used for group in case.rig.core.kv.groups] == used
    assert all(target not in case.rig.finals for target in case.targets)
    case.held.release()
    engine.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize(("state", "depth"), list(itertools.product(STATES, [1, 2])))
def test_blocks_of_a_step_in_flight_are_free_only_after_it(state: Callable[[int], Case], depth: int) -> None:
    case = state(depth)
    while depth > 1 and not case.rig.core.scheduler._flight:
        case.rig.step()
    flying = len(case.rig.core.scheduler._flight)
    held = {
        block
        for target in case.targets
        if (request := case.rig.core.scheduler.find(target)) is not None and request.kv.last_step >= 0
        for table in request.kv.tables
        for block in table.blocks
    }
    case.rig.send(Abort(case.targets))
    if flying and held:
        newest = case.rig.core.scheduler._flight[-1]
        touched = any(item.request.request.request_id in case.targets for item in newest.items)
        free = set(case.rig.core.kv.groups[0].pool.free_ids())
        assert not touched or not held <= free
    case.rig.run()
    case.rig.check_answers()
