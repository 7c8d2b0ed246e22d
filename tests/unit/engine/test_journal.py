"""The journal: what is read is what was written, whole or not at all; and the judgement of a stuck engine."""

from __future__ import annotations

import os
import signal
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.journal import (
    CAPACITY,
    Journaled,
    JournalReader,
    JournalWriter,
    Phase,
    Reading,
    Span,
    StepTimes,
    create,
)
from octavo.engine.watch import COLD, FACTOR, LOADING, TICK_SECONDS, Watch
from octavo.types import ModelInfo, NewSlot, SamplingParams, SeqWork, StepHandle, StepPlan, StepResult


@pytest.fixture
def pair() -> tuple[JournalReader, JournalWriter]:
    fd = create()
    pair = JournalReader(fd), JournalWriter(fd)
    os.close(fd)
    pair[0].reset()
    return pair


ENTRIES = st.lists(st.tuples(st.integers(1, 2**63), st.integers(0, 2**31), st.integers(0, 2**31)), max_size=40)


@given(st.lists(st.one_of(ENTRIES, st.sampled_from([Phase.IDLE, Phase.HOST])), min_size=1, max_size=6))
def test_what_is_read_is_what_was_written_last(writes: list[list[tuple[int, int, int]] | Phase]) -> None:
    fd = create()
    reader, writer = JournalReader(fd), JournalWriter(fd)
    os.close(fd)
    beat = -1
    for write in writes:
        if isinstance(write, Phase):
            writer.mark(write)
        else:
            writer.step(3, write, 0.5)
        reading = reader.read()
        assert reading is not None and reading.beat > beat
        beat = reading.beat
        if isinstance(write, Phase):
            assert reading.phase is write and reading.requests == {}
        else:
            assert reading.in_step and reading.expected == 0.5
            assert reading.requests == {request: Span(start, end) for request, start, end in write}


def test_a_write_that_was_cut_off_is_not_read(pair: tuple[JournalReader, JournalWriter]) -> None:
    reader, writer = pair
    writer.step(1, [(7, 0, 5)], 0.1)
    struct.pack_into("<Q", writer._memory, 0, 3)
    assert reader.read() is None


def test_more_requests_than_it_holds_are_everyone(pair: tuple[JournalReader, JournalWriter]) -> None:
    reader, writer = pair
    writer.step(1, [(request, 0, 1) for request in range(CAPACITY + 1)], 0.1)
    reading = reader.read()
    assert reading is not None and reading.in_step and reading.requests is None


def test_the_next_engine_knows_what_steps_took(pair: tuple[JournalReader, JournalWriter]) -> None:
    reader, writer = pair
    writer.times.observe(16, 2.0)
    reader.reset()
    next_writer = JournalWriter.__new__(JournalWriter)
    next_writer._memory = writer._memory
    assert StepTimes(list(struct.unpack_from("<32d", writer._memory, 56)), lambda times: None).expected(64) == 8.0


def test_it_outlives_a_process_that_is_killed_in_its_step(pair: tuple[JournalReader, JournalWriter]) -> None:
    reader, writer = pair
    child = os.fork()
    if child == 0:
        writer.step(1, [(5, 0, 9), (6, 3, 4)], 0.25)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    reading = reader.read()
    assert reading is not None and reading.in_step
    assert reading.requests == {5: Span(0, 9), 6: Span(3, 4)}


class Steps:
    """An executor whose steps are over when they are asked for."""

    info: ModelInfo
    num_blocks = (1,)

    def submit(self, plan: StepPlan) -> StepHandle:
        class Handle:
            def result(self) -> StepResult:
                return StepResult(plan.step_id, (), 0.5)

        return Handle()

    def close(self) -> None:
        return None


def _plan(step: int, enters: dict[int, int], works: list[int], leaves: tuple[int, ...] = ()) -> StepPlan:
    """enters: slot -> request."""
    new = tuple(
        NewSlot(
            slot=slot,
            request_id=request,
            tokens=[1],
            num_prompt=1,
            params=SamplingParams(max_tokens=1),
            seed=0,
            choice=0,
            cached_blocks=(),
        )
        for slot, request in enters.items()
    )
    return StepPlan(step, new, tuple(SeqWork(slot, step, 1, (), True) for slot in works), leaves)


def test_steps_in_flight_are_all_in_it(pair: tuple[JournalReader, JournalWriter]) -> None:
    reader, writer = pair
    steps = Steps()
    steps.info = None  # type: ignore[assignment]
    journaled = Journaled(steps, writer)

    def present() -> set[int]:
        reading = reader.read()
        assert reading is not None and reading.requests is not None
        return set(reading.requests) if reading.in_step else set()

    first = journaled.submit(_plan(0, {0: 10, 1: 11}, [0, 1]))
    assert present() == {10, 11}
    second = journaled.submit(_plan(1, {1: 12}, [1], leaves=(1,)))
    assert present() == {10, 11, 12}
    first.result()
    assert present() == {12}
    second.result()
    assert present() == set()


def _reading(beat: int, phase: Phase, expected: float = 0.0) -> Reading:
    return Reading(beat, phase, 1, expected, {})


def _looks(watch: Watch, reading: Reading | None, seconds: float, start: float = 0.0) -> float:
    now = start
    while now < start + seconds:
        now += TICK_SECONDS
        watch.look(now, reading)
    return now


@pytest.mark.parametrize(
    ("phase", "expected", "limit"),
    [
        (Phase.STEP, 0.01, 4.0),
        (Phase.STEP, 1.0, FACTOR),
        (Phase.STEP, 0.0, 4 * COLD),
        (Phase.IDLE, 0, 4),
        (Phase.HOST, 0, 4),
        (Phase.LOADING, 0, 4 * LOADING),
    ],
)
def test_a_beat_that_lasts_too_long_is_late_and_then_stuck(phase: Phase, expected: float, limit: float) -> None:
    watch = Watch(4.0)
    reading = _reading(2, Phase(phase), expected)
    now = _looks(watch, reading, limit * 0.4)
    assert not watch.late
    now = _looks(watch, reading, limit * 0.4, now)
    assert watch.late and not watch.stuck
    now = _looks(watch, reading, limit * 0.4, now)
    assert watch.stuck
    watch.look(now, _reading(4, Phase(phase), expected))
    assert not watch.late and not watch.stuck


@pytest.mark.parametrize("phase", Phase)
def test_the_watch_can_be_switched_off(phase: Phase) -> None:
    watch = Watch(0.0)
    _looks(watch, _reading(2, phase, 1.0), 1000.0)
    assert not watch.late and not watch.stuck


def test_time_in_which_the_parent_stood_still_does_not_count() -> None:
    watch = Watch(4.0)
    reading = _reading(2, Phase.STEP, 0.1)
    now = _looks(watch, reading, 0.5)
    watch.look(now + 3600.0, reading)
    assert not watch.late
