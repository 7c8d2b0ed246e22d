"""Clients that hold on and clients that let go, beside good ones: everything is back to where it was afterwards.

Phases, while a few good streams run and are compared with their solo answers: streams read at one byte a second, which
the server must cut off; connections opened and closed in every way; streams aborted. Memory, descriptors, tasks,
connections and blocks are compared with those after a small round of the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.serving import ServerProcess, parse_metrics
from benchmarks.small import CONTEXT, small_model
from benchmarks.soak import CHAT, fixed_requests
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import fetch, stream_once

GROWTH_BYTES = 16 << 20
_GOOD = 4
_WIDTH = 64
_LEFT = ("octavo_requests_running", "octavo_requests_waiting")


@dataclass(frozen=True)
class Size:
    """How much of each."""

    slow: int
    connections: int
    aborts: int
    patience: float
    """Seconds after which everything must be back."""


@dataclass
class State:
    """What a server holds."""

    memory: int
    descriptors: int
    tasks: int
    connections: int
    blocks: int


@dataclass
class Tally:
    """What became of the good streams."""

    complete: int = 0
    faults: list[str] = field(default_factory=list)


def abuse(short: bool) -> dict[str, Any]:
    """100 slow readers, 10 000 connections, 2 000 aborts (short: 8, 400 and 40, on a small model)."""
    if short:
        with small_model() as model:
            return _abuse(Size(6, 100, 10, 30), Size(8, 400, 40, 30), [str(model), "--send-seconds", "2"], CONTEXT)
    return _abuse(Size(20, 1000, 200, 90), Size(100, 10_000, 2000, 90), [], 16384)


def _abuse(warm: Size, size: Size, arguments: list[str], pool: int) -> dict[str, Any]:
    """warm: of the small round before. pool: tokens."""
    seed = random.SystemRandom().randrange(2**32)
    with ServerProcess([*arguments, "--kv-tokens", str(pool)]) as server:
        run = Run(server, pool)
        before, after = asyncio.run(run.measure(warm, size, seed))
    tally = run.tally
    left = [
        f"{name} {getattr(before, name)} -> {getattr(after, name)}"
        for name, slack in (("descriptors", 1), ("tasks", 1), ("connections", 0), ("blocks", 0))
        if getattr(after, name) > getattr(before, name) + slack
    ]
    growth = after.memory - before.memory
    if growth > GROWTH_BYTES:
        left.append(f"memory {growth / 2**20:+.1f} MiB")
    return {
        "bar": f"memory within {GROWTH_BYTES >> 20} MiB; descriptors, tasks, connections, blocks back; others as ever",
        "figure": f"{size.slow} slow readers, {size.connections} connections, {size.aborts} aborts: "
        f"{'; '.join(left) or 'all back'}, memory {growth / 2**20:+.1f} MiB; {tally.complete} good streams complete "
        f"and equal, {len(tally.faults)} faults",
        "met": not left and not tally.faults and tally.complete > 0,
        "details": {
            "seed": seed,
            "before": vars(before),
            "after": vars(after),
            "left": left,
            "faults": tally.faults[:5],
        },
    }


class Run:
    """The good streams, and what they meet."""

    def __init__(self, server: ServerProcess, pool: int) -> None:
        self.server = server
        self._pool = pool
        self.tally = Tally()
        self._going = asyncio.Event()
        self._over = False

    async def measure(self, warm: Size, size: Size, seed: int) -> tuple[State, State]:
        """What is held after a small round, and after the whole one."""
        await self._touch_pages()
        bodies = [{**body, "max_tokens": 48} for body in fixed_requests(100)[:_GOOD]]
        solo = [await stream_once(self.server.target, CHAT, body) for body in bodies]
        good = [asyncio.create_task(self._stream(body, alone)) for body, alone in zip(bodies, solo, strict=True)]
        try:
            return await self._phases(warm, random.Random(seed)), await self._phases(size, random.Random(seed + 1))
        finally:
            self._over = True
            self._going.set()
            await asyncio.gather(*good)

    async def _touch_pages(self) -> None:
        """Uses every page of the pool once: pages count as memory from their first use."""
        length = 2000
        for first in range(0, self._pool, length):
            prompt = [100 + (first + 7 * i) % 160 for i in range(length)]
            body = {"prompt": prompt, "max_tokens": 1, "cache_salt": f"page {first}"}
            answer = await stream_once(self.server.target, "/v1/completions", body)
            assert answer.done, answer

    async def _phases(self, size: Size, rng: random.Random) -> State:
        self._going.set()
        async with asyncio.TaskGroup() as group:
            over = asyncio.Event()
            slow = [group.create_task(_slow_reader(self.server, over)) for _ in range(size.slow)]
            await self._cut_off(size)
            over.set()
            await asyncio.gather(*slow)
        await _many(size.connections, lambda: _touch(self.server, rng.randrange(5)))
        await _many(size.aborts, lambda: self._abort(rng))
        self._going.clear()
        return await self._settled(size.patience)

    async def _stream(self, body: dict[str, Any], alone: Answer) -> None:
        while True:
            await self._going.wait()
            if self._over:
                return
            answer = await stream_once(self.server.target, CHAT, body)
            if (answer.text, answer.finish, answer.done) == (alone.text, alone.finish, True):
                self.tally.complete += 1
            else:
                said = f"{answer.text[:60]!r} is not {alone.text[:60]!r}: {answer.failure} {answer.detail}"
                self.tally.faults.append(said)

    async def _cut_off(self, size: Size) -> None:
        """Waits until the slow readers are there, and until none is."""
        if not await _until(self.server, lambda values: values["octavo_http_connections"] >= size.slow, 60.0):
            self.tally.faults.append("the slow readers are not served")
        few = _GOOD + 1  # the good ones, and who asks
        assert size.slow > few
        if not await _until(self.server, lambda values: values["octavo_http_connections"] <= few, 120.0):
            self.tally.faults.append("slow readers are not cut off")

    async def _abort(self, rng: random.Random) -> None:
        body = {"messages": [{"role": "user", "content": f"Count to {rng.randrange(1000)}."}], "max_tokens": 400}
        answer = await stream_once(self.server.target, CHAT, body, cut_after=rng.randrange(1, 6))
        if not (answer.cut or answer.done):
            self.tally.faults.append(f"a stream to abort: {answer.failure} {answer.detail}")

    async def _settled(self, patience: float) -> State:
        """What is held when nobody is there but who asks."""
        if not await _until(
            self.server,
            lambda values: values["octavo_http_connections"] <= 1 and not any(values[name] for name in _LEFT),
            patience,
        ):
            self.tally.faults.append(f"requests or connections are left after {patience:g} s")
        values = await _values(self.server)
        return State(
            memory=self.server.memory_bytes(),
            descriptors=psutil.Process(self.server.process.pid).num_fds(),
            tasks=int(values["octavo_server_tasks"]),
            connections=int(values["octavo_http_connections"]),
            blocks=int(values["octavo_kv_blocks"] - values["octavo_kv_blocks_free"]),
        )


async def _many(count: int, one: Callable[[], Awaitable[None]]) -> None:
    """So many, `_WIDTH` at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(worker() for _ in range(_WIDTH)))


async def _connect(server: ServerProcess, receive_buffer: int = 0) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(connection, (server.host, server.port))
    return connection


async def _slow_reader(server: ServerProcess, over: asyncio.Event) -> None:
    """Asks for much, and takes a byte a second until it is told that everybody is cut off."""
    body = json.dumps(
        {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "logprobs": 20, "stream": True, "temperature": 1}
    ).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    loop = asyncio.get_running_loop()
    connection = await _connect(server, 2048)
    try:
        await loop.sock_sendall(connection, head + body)
        while not over.is_set():
            try:
                if not await loop.sock_recv(connection, 1):
                    return
            except ConnectionError:
                return
            await asyncio.sleep(1.0)
    finally:
        connection.close()


async def _touch(server: ServerProcess, how: int) -> None:
    """A connection that is opened and closed: silent, mid-head, mid-body, unread, reset."""
    loop = asyncio.get_running_loop()
    try:
        connection = await _connect(server)
    except OSError:
        return
    try:
        if how == 1:
            await loop.sock_sendall(connection, b"POST /v1/comp")
        elif how == 2:
            await loop.sock_sendall(
                connection, b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"
            )
        elif how == 3:
            await loop.sock_sendall(connection, b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        elif how == 4:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except ConnectionError:
        pass  # the server was quicker: it may end what it likes
    finally:
        connection.close()


async def _values(server: ServerProcess) -> dict[str, float]:
    _, body = await fetch(server.target, "GET", "/metrics")
    return parse_metrics(body.decode())


async def _until(server: ServerProcess, condition: Callable[[dict[str, float]], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition(await _values(server)):
            return True
        await asyncio.sleep(0.1)
    return False
