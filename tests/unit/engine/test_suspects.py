"""Suspects, against a simulated engine: the guilty are failed, the innocent never, whatever the timing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.engine.journal import Span
from octavo.engine.suspects import MAX_ALONE, PROBATION, Suspects

PROMPT = 10
LENGTH = 60


@dataclass
class World:
    """Requests, an engine that dies on some of them, and the client's part in it."""

    rng: Random
    killers: dict[int, int]
    """Request -> tokens it has when it kills the engine."""
    by_signal: bool
    """Killers look like SIGKILL."""
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
        if self.engine is not None and self.suspects.admit(request, 0):
            self._give([request])

    def step(self) -> None:
        """One step of the engine, or its new start."""
        self.now += 0.1
        if self.engine is None:
            self.engine = {}
            self._give(self.suspects.arrange(self.tokens))
            return
        self._give(self.suspects.expired(self.tokens))
        running = [request for request in self.engine if request in self.tokens][: self.width]
        guilty = [request for request in running if self.killers.get(request) == self.tokens[request]]
        if guilty or self.rng.random() < self.random_kills:
            self._die(running, bool(guilty) and not self.by_signal)
            return
        for request in running:
            self.tokens[request] += 1
            if self.tokens[request] == LENGTH:
                del self.tokens[request]
                self.finished.append(request)
                self._give(self.suspects.left([request], self.tokens))
            else:
                self._give(self.suspects.progressed(request, self.tokens))

    def abort(self, request: int) -> None:
        if self.tokens.pop(request, None) is not None:
            self._give(self.suspects.left([request], self.tokens))

    def _give(self, requests: list[int]) -> None:
        if self.engine is None:
            return
        for request in requests:
            assert request in self.tokens and request not in self.engine
            self.engine[request] = None
            self.given.add(request)

    def _die(self, running: list[int], certain: bool) -> None:
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
        for request in self.suspects.died(spans, self.tokens, certain):
            assert self.alone_deaths.get(request, 0) >= MAX_ALONE, "failed without having been alone"
            del self.tokens[request]
            self.failed.append(request)
            self.suspects.left([request], self.tokens)
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
    by_signal=st.booleans(),
    kills=st.sampled_from([0.0, 0.0, 0.01, 0.05]),
    late=st.booleans(),
)
@example(seed=0, count=17, killers={16: 0}, by_signal=True, kills=0.0, late=False)
def test_killers_are_failed_and_nobody_else(
    seed: int, count: int, killers: dict[int, int], by_signal: bool, kills: float, late: bool
) -> None:
    killers = {request: at for request, at in killers.items() if request < count}
    world = World(Random(seed), killers, by_signal, kills)
    for request in range(count):
        world.arrive(request)
        if late:
            for _ in range(world.rng.randrange(4)):
                world.step()
    run(world)
    # SIGKILL from outside, twice at the same step of a request that is alone, cannot be told from its own fault: that
    # it was alone in both is checked at each failure.
    assert set(world.failed) == set(killers) or (kills and set(world.failed) > set(killers))
    assert sorted(world.finished) == [request for request in range(count) if request not in world.failed]


@pytest.mark.parametrize("at", range(17))
def test_one_killer_among_seventeen_costs_few_deaths(at: int) -> None:
    world = World(Random(at), {at: 5}, by_signal=False, width=17)
    for request in range(17):
        world.arrive(request)
    run(world)
    assert world.failed == [at]
    assert world.deaths <= 1 + 5 + MAX_ALONE


def test_kills_from_outside_suspect_nobody_who_goes_on() -> None:
    world = World(Random(1), {}, by_signal=True, width=32)
    for request in range(32):
        world.arrive(request)
    for _ in range(15):
        for _ in range(3):
            world.step()
        assert world.engine is not None
        world._die(list(world.engine), certain=False)
        world.step()
        assert world.engine is not None and len(world.engine) == 32, "everyone resumes at once"
    run(world)
    assert not world.failed and len(world.finished) == 32


def test_a_request_that_arrives_during_a_trial_alone_waits_for_its_end_only() -> None:
    world = World(Random(1), {}, by_signal=False)
    world.arrive(0)
    world._die([0], certain=True)
    world.step()
    world.arrive(1)
    assert world.engine is not None and 1 not in world.engine
    for _ in range(PROBATION):
        world.step()
    assert 1 in world.engine


def test_a_trial_ends_with_the_request_and_after_some_seconds() -> None:
    for ending in ("abort", "time"):
        world = World(Random(1), {}, by_signal=False)
        world.arrive(0)
        world.arrive(1)
        world._die([0, 1], certain=True)
        world.step()
        assert world.engine == {0: None}
        if ending == "abort":
            world.abort(0)
        else:
            world.now += 60.0
            world._give(world.suspects.expired(world.tokens))
        assert 1 in world.engine
