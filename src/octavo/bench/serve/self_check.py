"""Is the client good enough on this machine? Streams of the null server, and how far the client's times are from its
log, on one clock: the client's own share in every latency that it reports. Repeated, with what else the machine did,
it gives a verdict; on a machine too busy to tell, it says so.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np
import psutil
import uvloop

from octavo.bench.machine import QUIET, Watch, describe, machine_lines, noise, stolen_seconds
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import Client
from octavo.bench.serve.priority import first_in_line
from octavo.bench.serve.target import Target, parse_target
from octavo.bench.stats import percentiles


@dataclass(frozen=True)
class Check:
    """What was found."""

    streams: int
    rate: float
    """Events a second asked of each stream."""
    events: int
    sent_rate: float
    """Events a second that the server really sent, on all streams."""
    lag_ms: dict[str, float]
    """Percentiles of arrival at the client - sending by the server."""
    smallest_ms: float
    largest_ms: float
    within_1ms: float
    """Share of the events."""
    cpu: float
    """Of one core, by the client."""
    priority: str = ""
    """Of the client among the system's processes, in words."""
    stolen: float = 0.0
    """Share of the CPUs' time that the hypervisor took meanwhile: nothing here runs then, so times are late."""

    def text(self) -> list[str]:
        lags = ", ".join(f"{name} {value:.3f}" for name, value in self.lag_ms.items())
        return [
            f"{self.streams} streams of {self.rate:.0f} events a second: {self.events} arrived, none lost; the server "
            f"sent {self.sent_rate:.0f} a second",
            f"client behind the server's log: {lags}, at most {self.largest_ms:.3f} ms; "
            f"{self.within_1ms:.3%} within 1 ms",
            f"client's CPU: {self.cpu:.0%} of one core; {self.priority}",
            f"the hypervisor took {self.stolen:.1%} of the CPUs",
        ]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


WITHIN = 0.999
"""Share of the events that must come within 1 ms, of the time that the hypervisor left: what it takes stops the client.
Not all: a scheduler that takes the core away is not the client."""
SENT = 0.98
"""Share of the rate that the server must have sent."""


def good(check: Check) -> bool:
    least = WITHIN - check.stolen
    return check.within_1ms >= least and check.cpu < 1.0 and check.sent_rate > SENT * check.streams * check.rate


@dataclass(frozen=True)
class Judgement:
    """Some checks, and what they say together."""

    checks: tuple[Check, ...]
    others: float
    """Share of the CPUs that other processes took meanwhile."""
    machine: dict[str, Any]

    @property
    def good(self) -> bool:
        """In more than half of the checks: one interruption says nothing of the client."""
        return self.result and sum(map(good, self.checks)) > len(self.checks) / 2

    @property
    def result(self) -> bool:
        """A failure on a busy machine may be the machine's; what passes on one is good there too."""
        passed = sum(map(good, self.checks))
        return passed == len(self.checks) or self.others <= QUIET

    @property
    def verdict(self) -> str:
        passed = f"{sum(map(good, self.checks))} of {len(self.checks)} checks passed"
        needed = (
            f"(within 1 ms {WITHIN:.1%} of events less what the hypervisor took, under one core, "
            f"{SENT:.0%} of the rate sent)"
        )
        if not self.result:
            return f"NOT A RESULT: {passed} {needed}, and others used {self.others:.0%} of the CPUs; repeat it"
        if self.good:
            return f"good enough here: {passed} {needed}"
        return f"NOT good enough here: {passed} {needed}; use fewer streams, a lower rate or another machine"

    def text(self) -> list[str]:
        lines = [*machine_lines(self.machine)]
        for number, check in enumerate(self.checks, 1):
            lines += [f"{f'check {number}' if not i else '':11s}{line}" for i, line in enumerate(check.text())]
        return [*lines, *noise(self.others, None), f"verdict    {self.verdict}"]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "octavo bench client", "good": self.good, "result": self.result, **asdict(self)}


def judge_client(
    streams: int, rate: float, seconds: float, repeats: int, progress: Callable[[str], None] = lambda what: None
) -> Judgement:
    """`repeats` checks, one after the other."""
    facts = describe()
    checks = []
    with Watch() as watch:
        for number in range(repeats):
            progress(f"check {number + 1} of {repeats}")
            checks.append(check_client(streams, rate, seconds))
    return Judgement(tuple(checks), watch.share, facts)


@contextmanager
def null_server(rate: float, host: str = "127.0.0.1") -> Iterator[Target]:
    """One in a process of its own."""
    command = [sys.executable, "-m", "octavo.bench.serve.null_server", "--rate", str(rate), "--host", host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield parse_target(process.stdout.readline().strip())
        finally:
            process.stdin.close()
            process.wait(10)


def check_client(streams: int = 5, rate: float = 5000.0, seconds: float = 2.0) -> Check:
    """Runs both; takes `seconds` and a little more."""
    with null_server(rate) as target, first_in_line() as priority:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return replace(runner.run(_check(target, streams, rate, int(rate * seconds))), priority=priority)


async def _check(target: Target, streams: int, rate: float, events: int) -> Check:
    body = msgspec.json.encode({"model": "null", "prompt": [1, 2, 3], "max_tokens": events, "stream": True})
    async with Client(target) as client:
        await client.stream("/v1/completions", msgspec.json.encode({"prompt": [1], "max_tokens": 10, "stream": True}))
        gc.collect()
        gc.disable()
        began, cpu, stolen = time.monotonic(), time.process_time(), stolen_seconds()
        answers = await asyncio.gather(
            *(client.stream("/v1/completions", body, request_id=f"check-{i}") for i in range(streams))
        )
        cpu, wall = time.process_time() - cpu, time.monotonic() - began
        stolen = (stolen_seconds() - stolen) / (wall * (psutil.cpu_count() or 1))
        gc.enable()
        _, raw = await client.request("GET", "/log")
    return replace(
        _judge(answers, msgspec.json.decode(raw, type=dict[str, list[float]]), rate, cpu / wall), stolen=stolen
    )


def _judge(answers: list[Answer], log: dict[str, list[float]], rate: float, cpu: float) -> Check:
    lags: list[float] = []
    sent: list[float] = []
    for index, answer in enumerate(answers):
        moments = log[f"check-{index}"]
        if answer.failure or len(answer.times) != len(moments):
            raise RuntimeError(f"{len(moments)} events sent, {len(answer.times)} arrived: {answer.failure}")
        sent += moments
        lags += [1e3 * (b - a) for a, b in zip(moments, answer.times, strict=True)]
    array = np.asarray(lags)
    span = max(sent) - min(sent)
    return Check(
        streams=len(answers),
        rate=rate,
        events=len(lags),
        sent_rate=len(sent) / span if span else 0.0,
        lag_ms=percentiles(lags),
        smallest_ms=float(array.min()),
        largest_ms=float(array.max()),
        within_1ms=float((array <= 1.0).mean()),
        cpu=cpu,
    )
