"""The comparison itself: contenders loaded together, each stopped while another runs, the same work in turns.

A round takes every work once; within a work all contenders run one right after the other, in an order drawn anew, so
that a machine that drifts carries all of them along. Ratios are formed within a round and work. Those that are driven
offline are done before servers are started. Where memory does not hold all of them, they are split into groups, each
with Octavo's own contenders in it. A contender that fails is left out from there on, with its reason; the others go
on, and so do they where the quick form (lean.py) leaves one out. Life: one call of `compare`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from octavo.bench.machine import Watch
from octavo.bench.peers.contender import Contender, Sample, Timing, Work, rates
from octavo.bench.peers.guard import Guard
from octavo.bench.peers.lean import followers, hopeless, rates_of
from octavo.bench.peers.worker import Worker, WorkerError
from octavo.bench.workload import constant, random_workload
from octavo.models.store import cache_dir

Say = Callable[[str], None]

READY_SECONDS = 900.0
RUN_SECONDS = 600.0
_SPARE_BYTES = 1 << 30
"""Memory that is left to everything else."""


@dataclass
class Seen:
    """What is known of a contender besides its samples."""

    facts: dict[str, Any] = field(default_factory=dict)
    start_seconds: float = 0.0
    memory_bytes: int = 0
    problem: str | None = None
    left_out: str | None = None
    """Why the quick form did without it."""


@dataclass(frozen=True)
class Comparison:
    """Everything that was measured."""

    contenders: tuple[Contender, ...]
    works: tuple[Work, ...]
    groups: tuple[tuple[str, ...], ...]
    samples: tuple[Sample, ...]
    seen: dict[str, Seen]
    rounds: int
    seed: int
    others: float
    """Share of the CPUs that other processes took."""
    seconds: float


def compare(
    contenders: Sequence[Contender],
    works: Sequence[Work],
    rounds: int,
    seed: int,
    vocab: int,
    say: Say,
    lean: bool = False,
) -> Comparison:
    """Runs all of it. vocab: token ids are below it. lean: forms that cannot be the best ones are left out."""
    began = time.monotonic()
    seen = {contender.name: Seen() for contender in contenders}
    assert len(seen) == len(contenders), "two contenders have one name"
    groups: list[list[Contender]] = []
    samples: list[Sample] = []
    with Watch() as watch, Guard() as guard:
        for way in sorted({contender.way for contender in contenders}, reverse=True):
            if lean:
                _leave(seen, followers(contenders, rates_of(samples, works), works), say)
            members = [one for one in contenders if one.way == way and seen[one.name].left_out is None]
            for group in _fitting(members, seen):
                turns = _Turns(group, works, random.Random(f"{seed} {len(groups)}"), len(groups), seen, say)
                groups.append(group)
                samples += turns.run(guard, rounds, vocab, lean)
    return Comparison(
        contenders=tuple(contenders),
        works=tuple(works),
        groups=tuple(tuple(contender.name for contender in group) for group in groups),
        samples=tuple(samples),
        seen=seen,
        rounds=rounds,
        seed=seed,
        others=watch.share,
        seconds=time.monotonic() - began,
    )


def _leave(seen: dict[str, Seen], reasons: dict[str, str], say: Say) -> None:
    for name, reason in reasons.items():
        seen[name].left_out = reason
        say(reason)


def _fitting(contenders: Sequence[Contender], seen: dict[str, Seen]) -> list[list[Contender]]:
    """Groups that memory holds; who fits in none has a problem."""
    groups = make_groups(contenders, psutil.virtual_memory().available - _SPARE_BYTES)
    for contender in contenders:
        if not any(contender in group for group in groups):
            seen[contender.name].problem = (
                f"{contender.name} needs about {contender.need_bytes / 1e9:.1f} GB of memory beside Octavo, "
                "which this machine does not have free"
            )
    return groups


def make_groups(contenders: Sequence[Contender], free: int) -> list[list[Contender]]:
    """As few groups as fit, each with Octavo's contenders first; who does not fit beside them is in none."""
    own = [contender for contender in contenders if contender.peer == "octavo"]
    others = [contender for contender in contenders if contender.peer != "octavo"]
    left = free - sum(contender.need_bytes for contender in own)
    groups: list[list[Contender]] = []
    room = 0
    for contender in others:
        if contender.need_bytes > left:
            continue
        if not groups or contender.need_bytes > room:
            groups.append(list(own))
            room = left
        groups[-1].append(contender)
        room -= contender.need_bytes
    return groups or [own]


class _Turns:
    """One group."""

    def __init__(
        self,
        group: Sequence[Contender],
        works: Sequence[Work],
        rng: random.Random,
        index: int,
        seen: dict[str, Seen],
        say: Say,
    ) -> None:
        self._group = group
        self._works = works
        self._rng = rng
        self._index = index
        self._seen = seen
        self._say = say
        self._active: list[Worker] = []

    def run(self, guard: Guard, rounds: int, vocab: int, lean: bool) -> list[Sample]:
        """Loads, warms up, measures, ends; whatever happens no worker stays."""
        samples: list[Sample] = []
        try:
            for contender in self._group:
                self._load(Worker(contender, guard, log_of(contender)))
            for work in self._works:
                prompts = _prompts(work, vocab, self._rng.getrandbits(48))
                for worker in self._doing(work):
                    self._say(f"warming up {worker.contender.name}: {work.name}")
                    self._turn(worker, prompts[: work.streams], min(work.output, 4), None)
            for number in range(rounds):
                for work in self._works:
                    samples += self._round(number, rounds, work, vocab)
                if lean and number == 0:
                    self._thin_out(samples)
        finally:
            for worker in self._active:
                worker.kill()
        return samples

    def _thin_out(self, samples: Sequence[Sample]) -> None:
        """Ends the forms that are far behind."""
        left = hopeless(self._group, rates_of(samples, self._works), self._works)
        _leave(self._seen, left, self._say)
        for worker in [worker for worker in self._active if worker.contender.name in left]:
            self._active.remove(worker)
            worker.kill()

    def _load(self, worker: Worker) -> None:
        seen = self._seen[worker.contender.name]
        self._say(f"starting {worker.contender.name}")
        self._active.append(worker)
        try:
            worker.start()
            seen.facts = worker.wait_ready(READY_SECONDS)
            # A server is a child of its worker, which knows when it was started.
            seen.start_seconds = float(seen.facts.pop("start_seconds", worker.start_seconds))
            worker.pause()
        except WorkerError as error:
            self._lose(worker, error)

    def _lose(self, worker: Worker, error: WorkerError) -> None:
        self._active.remove(worker)
        worker.kill()
        self._seen[worker.contender.name].problem = str(error)
        self._say(str(error))

    def _doing(self, work: Work) -> list[Worker]:
        """Those that are driven the work's way."""
        return [worker for worker in self._active if worker.contender.way == work.way]

    def _turn(self, worker: Worker, prompts: list[list[int]], output: int, users: int | None) -> Timing | None:
        """One run, between going on and being stopped; None where the worker was lost."""
        try:
            worker.resume()
            timing = worker.run(prompts, output, RUN_SECONDS, users)
            worker.pause()
        except WorkerError as error:
            self._lose(worker, error)
            return None
        return timing

    def _round(self, number: int, rounds: int, work: Work, vocab: int) -> list[Sample]:
        prompts = _prompts(work, vocab, self._rng.getrandbits(48))
        others = _prompts(work, vocab, self._rng.getrandbits(48))
        order = self._doing(work)
        users = work.streams if work.requests else None
        self._rng.shuffle(order)
        samples = []
        for turn, worker in enumerate(order):
            name = worker.contender.name
            self._say(f"round {number + 1} of {rounds}, {work.name}: {name}")
            timing = self._turn(worker, prompts, work.output, users)
            first_run = None
            if timing is not None and timing.first is None:
                alone = self._turn(worker, others, 1, None)
                first_run = None if alone is None else alone.seconds
            if timing is None or worker not in self._active:
                continue
            self._seen[name].memory_bytes = max(self._seen[name].memory_bytes, worker.memory())
            prefill, decode, output = rates(work, timing, first_run)
            samples.append(
                Sample(
                    name, work.name, number, self._index, turn, timing.seconds, prefill, decode, output, timing.extra
                )
            )
        return samples


def log_of(contender: Contender) -> Path:
    return cache_dir() / "peers" / "logs" / f"{contender.name.replace(' ', '-')}.log"


def _prompts(work: Work, vocab: int, seed: int) -> list[list[int]]:
    made = random_workload(work.count, work.prompt, constant(work.output), vocab, seed)
    return [list(item.prompt) for item in made.items]
