"""A server on a thread that speaks the API just well enough, and misbehaves as it is told, request by request.

Requests of two tokens or fewer are the client's questions at the start and are answered well. The others take the
behaviours in turn. `held` requests are answered when as many are waiting as `hold` says.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from octavo.bench.serve.target import Target

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class OddServer:
    """`with OddServer(["ok", "429"]) as server`, then `server.target`."""

    def __init__(self, behaviours: Sequence[str] = ("ok",), hold: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.behaviours = behaviours
        self.bodies: list[dict[str, Any]] = []
        """Of the requests that were not questions."""
        self.headers: list[str] = []
        """Heads of all requests."""
        self.connections = 0
        self.most_at_once = 0
        self._hold = hold
        self._now = 0
        self._waiting = 0
        self._tls = tls
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self._port)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._all_here = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=self._tls, limit=1 << 22)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._request(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.headers.append(head)
        length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("Content-Length:")), 0)
        raw = await reader.readexactly(length)
        if head.startswith("GET"):
            models = b'{"data":[{"id":"odd"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(models), models))
            return True
        body = json.loads(raw)
        behaviour = "ok"
        if body["max_tokens"] > 2:
            behaviour = self.behaviours[len(self.bodies) % len(self.behaviours)]
            self.bodies.append(body)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return bool(await getattr(self, f"_{behaviour.replace(' ', '_')}")(writer, body))
        finally:
            self._now -= 1

    # --- behaviours: True where the connection goes on ------------------------------------------------

    async def _ok(
        self, writer: asyncio.StreamWriter, body: dict[str, Any], merged: int = 1, usage: bool = True
    ) -> bool:
        writer.write(_OK)
        count = body["max_tokens"]
        for begin in range(0, count, merged):
            text = " a" * min(merged, count - begin)
            _event(writer, body, text, "length" if begin + merged >= count else None)
            await writer.drain()
        if usage:
            prompt = body.get("prompt") or body["messages"][0]["content"].split()
            prompt = prompt.split() if isinstance(prompt, str) else prompt
            _send(writer, {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": count}})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return True

    async def _held(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        self._waiting += 1
        if self._waiting >= self._hold:
            self._all_here.set()
        await self._all_here.wait()
        return await self._ok(writer, body)

    async def _merged(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        return await self._ok(writer, body, merged=4)

    async def _no_usage(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        return await self._ok(writer, body, usage=False)

    async def _hangs_up_after(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        await self._ok(writer, body)
        return False

    async def _no_end(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        writer.write(_OK)
        _event(writer, body, " a", None)
        writer.write(b"0\r\n\r\n")
        return True

    async def _truncated(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        writer.write(_OK)
        _event(writer, body, " a", None)
        writer.write(b"40\r\ndata: {")
        await writer.drain()
        return False

    async def _reset(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    async def _slow(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        await self._stop.wait()
        return False

    async def _malformed(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        writer.write(_OK)
        _chunk(writer, b"data: {no json\n\n")
        await writer.drain()
        return True

    async def _no_http(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()
        return True

    async def _error_event(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        writer.write(_OK)
        _event(writer, body, " a", None)
        _send(writer, {"error": {"message": "the engine died"}})
        await writer.drain()
        return True

    async def _429(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        return _status(writer, b"429 Too Many Requests", b'{"error": {"message": "later"}}')

    async def _500(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        return _status(writer, b"500 Internal Server Error", b"oh")


def _status(writer: asyncio.StreamWriter, status: bytes, body: bytes) -> bool:
    writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
    return True


def _event(writer: asyncio.StreamWriter, body: dict[str, Any], text: str, finish: str | None) -> None:
    said: dict[str, Any] = {"text": text} if "prompt" in body else {"delta": {"content": text}}
    _send(writer, {"choices": [{"index": 0, **said, "finish_reason": finish}]})


def _send(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
