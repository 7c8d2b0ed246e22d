"""Is the client good enough on this machine? Streams of the null server, and how far the client's times are from its
log, on one clock: the client's own share in every latency that it reports.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import uvloop

from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import Client
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

    def text(self) -> list[str]:
        lags = ", ".join(f"{name} {value:.3f}" for name, value in self.lag_ms.items())
        return [
            f"{self.streams} streams of {self.rate:.0f} events a second: {self.events} arrived, none lost; the server "
            f"sent {self.sent_rate:.0f} a second",
            f"client behind the server's log: {lags}, at most {self.largest_ms:.3f} ms; "
            f"{self.within_1ms:.3%} within 1 ms",
            f"client's CPU: {self.cpu:.0%} of one core",
        ]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


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
    with null_server(rate) as target:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_check(target, streams, rate, int(rate * seconds)))


async def _check(target: Target, streams: int, rate: float, events: int) -> Check:
    body = msgspec.json.encode({"model": "null", "prompt": [1, 2, 3], "max_tokens": events, "stream": True})
    async with Client(target) as client:
        await client.stream("/v1/completions", msgspec.json.encode({"prompt": [1], "max_tokens": 10, "stream": True}))
        gc.collect()
        gc.disable()
        began, cpu = time.monotonic(), time.process_time()
        answers = await asyncio.gather(
            *(client.stream("/v1/completions", body, request_id=f"check-{i}") for i in range(streams))
        )
        cpu, wall = time.process_time() - cpu, time.monotonic() - began
        gc.enable()
        _, raw = await client.request("GET", "/log")
    return _judge(answers, msgspec.json.decode(raw, type=dict[str, list[float]]), rate, cpu / wall)


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
