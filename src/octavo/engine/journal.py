"""The journal: what the engine is doing, in memory that outlives it.

Owns one small shared mapping of fixed layout: the phase, a heartbeat, how long the running step should take, and for
each request in it the positions that it computes. The engine writes before each step and after it; the parent reads
the heartbeat while the engine lives, and after a death who was in the step. Life: made by the parent, inherited as a
descriptor, used by one engine after another, so that what steps take is known from a new engine's first step.
A writer makes the generation odd, writes, and makes it even; a reader takes what it read only if the generation was
even and did not move. Costs about two microseconds a step. There is no off switch: an engine without a parent
(`LLM`) has none.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from octavo.types import Executor, StepHandle, StepPlan, StepResult

CAPACITY = 8192
"""Entries; a step with more (only ever with several in flight) says so, and then everyone is meant."""
_HEADER = struct.Struct("<QQQQQqQ")
_BUCKETS = 32
_TIMES = struct.Struct(f"<{_BUCKETS}d")
_ENTRIES_AT = _HEADER.size + _TIMES.size
SIZE = _ENTRIES_AT + 16 * CAPACITY
_OVERFLOW = (1 << 64) - 1


class Phase(IntEnum):
    """What the engine does."""

    LOADING = 0
    IDLE = 1
    """It waits for messages; it beats once a second."""
    HOST = 2
    """It takes messages in, plans, or tells results."""
    STEP = 3
    """A step runs."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions [start, end) of one request in a step."""

    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Reading:
    """The journal at one moment."""

    beat: int
    """Moves with every write."""
    phase: Phase
    steps: int
    """Begun in this life of the engine."""
    expected: float
    """Seconds that the running step should take; 0: not known."""
    requests: dict[int, Span] | None
    """In the running step, by request id; None: too many to list."""

    @property
    def in_step(self) -> bool:
        return self.phase is Phase.STEP


def create() -> int:
    """A descriptor of an empty journal."""
    if sys.platform == "linux":
        fd = os.memfd_create("octavo-journal")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, SIZE)
    return fd


class JournalReader:
    """The parent's side."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, SIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def reset(self) -> None:
        """Before a new engine starts; what steps take is kept."""
        _HEADER.pack_into(self._memory, 0, 0, Phase.LOADING, 0, 0, 0, -1, 0)

    def read(self) -> Reading | None:
        """None where the writer was in the middle of it, or died there."""
        memory = self._memory
        beat, phase, steps, _, expected, _, count = _HEADER.unpack_from(memory, 0)
        listed = 0 if count == _OVERFLOW else min(count, CAPACITY)
        flat = struct.unpack_from(f"<{2 * listed}Q", memory, _ENTRIES_AT)
        (again,) = struct.unpack_from("<Q", memory, 0)
        if beat % 2 or again != beat:
            return None
        requests = {flat[i]: Span(flat[i + 1] >> 32, flat[i + 1] & 0xFFFFFFFF) for i in range(0, 2 * listed, 2)}
        return Reading(beat, Phase(phase), steps, expected / 1e9, None if count == _OVERFLOW else requests)


class JournalWriter:
    """The engine's side; one thread writes."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, SIZE)
        self._beat = 0
        self._steps = 0
        self.times = StepTimes(list(_TIMES.unpack_from(self._memory, _HEADER.size)), self._save)

    def mark(self, phase: Phase) -> None:
        """A phase in which no step runs."""
        self._write(phase, 0.0, -1, 0, [])

    def step(self, plan_id: int, entries: list[tuple[int, int, int]], expected: float) -> None:
        """A step of requests (id, start, end) begins, or goes on beside others."""
        self._steps += 1
        count = len(entries) if len(entries) <= CAPACITY else _OVERFLOW
        flat = [] if count == _OVERFLOW else [word for id, start, end in entries for word in (id, start << 32 | end)]
        self._write(Phase.STEP, expected, plan_id, count, flat)

    def _write(self, phase: Phase, expected: float, plan_id: int, count: int, flat: list[int]) -> None:
        memory = self._memory
        _HEADER.pack_into(
            memory,
            0,
            self._beat + 1,
            phase,
            self._steps,
            time.monotonic_ns(),
            min(int(expected * 1e9), 1 << 62),
            plan_id,
            count,
        )
        struct.pack_into(f"<{len(flat)}Q", memory, _ENTRIES_AT, *flat)
        self._beat += 2
        struct.pack_into("<Q", memory, 0, self._beat)

    def _save(self, times: list[float]) -> None:
        _TIMES.pack_into(self._memory, _HEADER.size, *times)


class StepTimes:
    """What steps of about so many positions take: a moving average for each power of two."""

    _WEIGHT = 0.25

    def __init__(self, times: list[float], save: Callable[[list[float]], None]) -> None:
        self._times = times
        self._save = save

    def observe(self, positions: int, seconds: float) -> None:
        bucket = _bucket(positions)
        before = self._times[bucket]
        self._times[bucket] = seconds if before == 0 else before + self._WEIGHT * (seconds - before)
        self._save(self._times)

    def expected(self, positions: int) -> float:
        """Seconds; 0 where nothing is known yet. Unknown sizes are scaled up from the next smaller known one."""
        bucket = _bucket(positions)
        for known in range(bucket, -1, -1):
            if self._times[known]:
                return self._times[known] * (1 << bucket - known)
        return max(self._times)


def _bucket(positions: int) -> int:
    return min(max(positions, 1).bit_length() - 1, _BUCKETS - 1)


class Journaled:
    """An executor whose steps are in the journal; implements `types.Executor`."""

    def __init__(self, executor: Executor, journal: JournalWriter) -> None:
        self._executor = executor
        self._journal = journal
        self._ids: dict[int, int] = {}
        """Slot -> request id."""
        self._flight: deque[tuple[list[tuple[int, int, int]], float]] = deque()
        self.info = executor.info
        self.num_blocks = executor.num_blocks

    def submit(self, plan: StepPlan) -> StepHandle:
        for slot in plan.released:
            self._ids.pop(slot, None)
        for new in plan.new:
            self._ids[new.slot] = new.request_id
        entries = [(self._ids[work.slot], work.start, work.start + work.count) for work in plan.work]
        positions = sum(work.count for work in plan.work)
        self._flight.append((entries, self._journal.times.expected(positions)))
        self._tell(plan.step_id)
        return _Watched(self._executor.submit(plan), self, plan.step_id, positions)

    def close(self) -> None:
        self._executor.close()

    def retired(self, step_id: int, positions: int, seconds: float) -> None:
        """The oldest step is over."""
        self._flight.popleft()
        self._journal.times.observe(positions, seconds)
        self._tell(step_id)

    def _tell(self, step_id: int) -> None:
        if not self._flight:
            self._journal.mark(Phase.HOST)
            return
        entries = self._flight[0][0] if len(self._flight) == 1 else [e for each, _ in self._flight for e in each]
        self._journal.step(step_id, entries, max(expected for _, expected in self._flight))


class _Watched:
    """A handle that says when its step is over."""

    __slots__ = ("_handle", "_owner", "_positions", "_step_id")

    def __init__(self, handle: StepHandle, owner: Journaled, step_id: int, positions: int) -> None:
        self._handle = handle
        self._owner = owner
        self._step_id = step_id
        self._positions = positions

    def result(self) -> StepResult:
        result = self._handle.result()
        self._owner.retired(self._step_id, self._positions, result.seconds)
        return result
