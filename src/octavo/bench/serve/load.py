"""Puts load on a server and brings home the answers, with what the client itself did meanwhile.

Closed loop: each user sends its next request when its last is answered (0.1 s later after a failure). Open loop: every
request is sent when it is due, whatever became of those before it; bodies are made beforehand. The garbage collector
rests while a run lasts. Life: one `run_load` a repeat.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from octavo.bench.machine import Watch, family_seconds
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.arrivals import Arrival, drawn
from octavo.bench.serve.client import Client
from octavo.bench.serve.plan import Plan
from octavo.bench.serve.prompts import Bodies

_BEAT = 0.02
_AFTER_FAILURE = 0.1
_LEAD = 0.05


@dataclass
class Load:
    """One repeat."""

    open_loop: bool
    answers: list[Answer] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    client_cpu: float = 0.0
    """Seconds."""
    server_cpu: float | None = None
    lags: list[float] = field(default_factory=list)
    """By how much each of the client's timers was late: what its times may be wrong by."""
    others: float = 0.0
    """Share of this machine's CPUs that neither the client nor (where it is known) the server used."""

    @property
    def seconds(self) -> float:
        return max(1e-9, self.ended - self.began)

    @property
    def late(self) -> list[float]:
        """By how much each send of an open loop was late."""
        return [answer.sent - answer.due for answer in self.answers] if self.open_loop else []


async def run_load(
    client: Client, plan: Plan, bodies: Bodies, arrivals: Sequence[Arrival] | None, seed: int, server_pid: int | None
) -> Load:
    """arrivals: of an open loop; None: the closed loop of the plan."""
    load = Load(open_loop=arrivals is not None)
    raise_file_limit()
    made = [bodies.body(arrival) for arrival in arrivals or ()]
    server = family_seconds(server_pid) if server_pid is not None else 0.0
    with _undisturbed(), Watch() as watch:
        beat = asyncio.create_task(_heartbeat(load.lags))
        cpu = time.process_time()
        load.began = time.monotonic()
        if arrivals is None:
            await _closed(client, plan, bodies, seed, load)
        else:
            load.began += _LEAD
            await _open(client, plan, arrivals, made, load)
        load.ended = time.monotonic()
        load.client_cpu = time.process_time() - cpu
        beat.cancel()
        with suppress(asyncio.CancelledError):
            await beat
    load.others = watch.share
    if server_pid is not None:
        load.server_cpu = family_seconds(server_pid) - server
        load.others = max(0.0, load.others - load.server_cpu / load.seconds / watch.cpus)
    return load


async def _closed(client: Client, plan: Plan, bodies: Bodies, seed: int, load: Load) -> None:
    source = itertools.islice(drawn(plan.work, seed), plan.requests)
    end = load.began + plan.seconds if plan.seconds else None

    async def user() -> None:
        for arrival in source:
            if end is not None and time.monotonic() >= end:
                return
            answer = await _one(client, plan, arrival, bodies.body(arrival), None)
            load.answers.append(answer)
            if answer.failure:
                await asyncio.sleep(_AFTER_FAILURE)

    await asyncio.gather(*(user() for _ in range(plan.users)))


async def _open(client: Client, plan: Plan, arrivals: Sequence[Arrival], made: list[bytes], load: Load) -> None:
    tasks = []
    for arrival, body in zip(arrivals, made, strict=True):
        due = load.began + arrival.at
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(_one(client, plan, arrival, body, due)))
    load.answers += await asyncio.gather(*tasks)


async def _one(client: Client, plan: Plan, arrival: Arrival, body: bytes, due: float | None) -> Answer:
    answer = await client.stream(plan.ask.path, body, due=due)
    answer.asked_prompt, answer.asked_output = arrival.prompt, arrival.output
    return answer


async def _heartbeat(lags: list[float]) -> None:
    while True:
        due = time.monotonic() + _BEAT
        await asyncio.sleep(_BEAT)
        lags.append(max(0.0, time.monotonic() - due))


@contextmanager
def _undisturbed() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def raise_file_limit() -> None:
    """An open loop may hold thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
