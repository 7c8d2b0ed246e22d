"""Suspects, against a simulated engine: the guilty are failed, the innocent never, whatever the timing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.engine.journal import Span
from octavo.engine.supervisor import Cause
from octavo.engine.suspects import MAX_ALONE, PROBATION, Suspects

PROMPT = 10
LENGTH = 60


@dataclass
class World:
    """Requests, an engine that dies on some of them, and the client's part in it."""

    rng: Random
    killers: dict[int, int]
    """Request -> tokens it has when it kills the engine."""
    by_memory: bool
    """Killers take all memory, rather than crash."""
    random_kills: float = 0.0
    """Chance of a SIGKILL from outside, each step."""
    width: int = 8
    now: float = 100.0

    def __post_init__(self) -> None:
        self.suspects = Suspects(lambda: self.now)
        self.tokens: dict[int, int] = {}
        self.engine: dict[int, None] | None = {}
        self.failed: list[int] = []
        self.finished: list[int] = []
        self.deaths = 0
        self.alone_deaths: dict[int, int] = {}
        self.given: set[int] = set()

    def arrive(self, request: int) -> None:
        self.tokens[request] = 0
        if self.engine is not None and self.suspects.admit(request):
            self._give([request])

    def step(self) -> None:
        """One step of the engine, or its new start."""
        self.now += 0.1
        if self.engine is None:
            self.engine = {}
            self._give(self.suspects.arrange(self.tokens))
            return
        self._give(self.suspects.expired())
        running = [request for request in self.engine if request in self.tokens][: self.width]
        guilty = [request for request in running if self.killers.get(request) == self.tokens[request]]
        if guilty:
            self.die(running, Cause.KILLED if self.by_memory else Cause.CRASH)
            return
        if self.rng.random() < self.random_kills:
            self.die(running, Cause.OUTSIDE)
            return
        for request in running:
            self.tokens[request] += 1
            if self.tokens[request] == LENGTH:
                del self.tokens[request]
                self.finished.append(request)
                self._give(self.suspects.left([request]))
            else:
                self._give(self.suspects.progressed(request, self.tokens))

    def abort(self, request: int) -> None:
        if self.tokens.pop(request, None) is not None:
            self._give(self.suspects.left([request]))

    def _give(self, requests: list[int]) -> None:
        if self.engine is None:
            return
        for request in requests:
            assert request in self.tokens and request not in self.engine
            self.engine[request] = None
            self.given.add(request)

    def die(self, running: list[int], cause: Cause) -> None:
        self.deaths += 1
        if len(self.given) == 1:
            [only] = self.given
            self.alone_deaths[only] = self.alone_deaths.get(only, 0) + 1
        spans = {
            request: Span(PROMPT + self.tokens[request] - 1, PROMPT + self.tokens[request])
            if self.tokens[request]
            else Span(0, PROMPT)
            for request in running
        }
        for request in self.suspects.died(spans, self.tokens, cause):
            assert self.alone_deaths.get(request, 0) >= MAX_ALONE, "failed without having been alone"
            del self.tokens[request]
            self.failed.append(request)
            self.suspects.left([request])
        self.engine = None
        self.given = set()


def run(world: World, limit: int = 20_000) -> None:
    for _ in range(limit):
        if not world.tokens:
            return
        world.step()
    raise AssertionError(f"{len(world.tokens)} requests are open after {limit} steps")


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 24),
    killers=st.dictionaries(st.integers(0, 23), st.integers(0, LENGTH - 1), max_size=3),
    by_memory=st.booleans(),
    kills=st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    late=st.booleans(),
)
@example(seed=0, count=17, killers={16: 0}, by_memory=True, kills=0.0, late=False)
def test_killers_are_failed_and_nobody_else(
    seed: int, count: int, killers: dict[int, int], by_memory: bool, kills: float, late: bool
) -> None:
    killers = {request: at for request, at in killers.items() if request < count}
    world = World(Random(seed), killers, by_memory, kills)
    for request in range(count):
        world.arrive(request)
        if late:
            for _ in range(world.rng.randrange(4)):
                world.step()
    run(world)
    assert set(world.failed) == set(killers)
    assert sorted(world.finished) == [request for request in range(count) if request not in world.failed]


@pytest.mark.parametrize("at", range(17))
def test_one_killer_among_seventeen_costs_few_deaths(at: int) -> None:
    world = World(Random(at), {at: 5}, by_memory=False, width=17)
    for request in range(17):
        world.arrive(request)
    run(world)
    assert world.failed == [at]
    assert world.deaths <= 1 + 5 + MAX_ALONE


@pytest.mark.parametrize("cause", [Cause.OUTSIDE, Cause.KILLED])
def test_being_killed_suspects_nobody_who_goes_on(cause: Cause) -> None:
    world = World(Random(1), {}, by_memory=True, width=32)
    for request in range(32):
        world.arrive(request)
    for _ in range(15):
        for _ in range(3):
            world.step()
        assert world.engine is not None
        world.die(list(world.engine), cause)
        world.step()
        assert world.engine is not None and len(world.engine) == 32, "everyone resumes at once"
    run(world)
    assert not world.failed and len(world.finished) == 32


@pytest.mark.parametrize(("cause", "fails"), [(Cause.OUTSIDE, False), (Cause.KILLED, True)])
def test_who_is_killed_alone_at_the_same_step_again_and_again_fails_unless_it_was_from_outside(
    cause: Cause, fails: bool
) -> None:
    world = World(Random(1), {}, by_memory=True)
    world.arrive(0)
    for _ in range(5):
        world.step()
    for _ in range(1 + MAX_ALONE):
        world.die([0], cause)
        world.step()
    assert world.failed == ([0] if fails else [])
    run(world)
    assert world.finished == ([] if fails else [0])


def test_kills_from_outside_do_not_hide_who_takes_all_memory() -> None:
    world = World(Random(1), {}, by_memory=True)
    world.arrive(0)
    for _ in range(1 + MAX_ALONE):
        world.die([0], Cause.OUTSIDE)
        world.step()
        world.die([0], Cause.KILLED)
        world.step()
    assert world.failed == [0]


def test_a_request_that_arrives_during_a_trial_alone_waits_for_its_end_only() -> None:
    world = World(Random(1), {}, by_memory=False)
    world.arrive(0)
    world.die([0], Cause.CRASH)
    world.step()
    world.arrive(1)
    assert world.engine is not None and 1 not in world.engine
    for _ in range(PROBATION):
        world.step()
    assert 1 in world.engine


def test_a_trial_ends_with_the_request_and_after_some_seconds() -> None:
    for ending in ("abort", "time"):
        world = World(Random(1), {}, by_memory=False)
        world.arrive(0)
        world.arrive(1)
        world.die([0, 1], Cause.CRASH)
        world.step()
        assert world.engine == {0: None}
        if ending == "abort":
            world.abort(0)
        else:
            world.now += 60.0
            world._give(world.suspects.expired())
        assert 1 in world.engine
