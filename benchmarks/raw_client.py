"""A raw-socket client for OpenAI-compatible servers: no SDK, so that measuring costs little of the two cores.

Owns one connection a request (`Connection: close`), parses status, chunked bodies and server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What one streamed request gave."""

    status: int = 0
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None
    cut: bool = False
    """The client closed the connection on purpose."""
    done: bool = False
    """The end marker arrived."""
    started: float = 0.0
    times: list[float] = field(default_factory=list)
    """Monotonic time of each event that carried text."""


async def _open(host: str, port: int, method: str, path: str, body: bytes) -> tuple[asyncio.StreamReader, Any]:
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in raw[1:] if ": " in line)
    return int(raw[0].split(" ", 2)[1]), headers


async def _chunks(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") != "chunked":
        yield await reader.read(-1)
        return
    while size := int(await reader.readline(), 16):
        data = await reader.readexactly(size + 2)
        yield data[:-2]


async def request(host: str, port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """One plain request; returns status and body."""
    raw = b"" if body is None else json.dumps(body).encode()
    reader, writer = await _open(host, port, method, path, raw)
    try:
        status, headers = await _head(reader)
        return status, b"".join([chunk async for chunk in _chunks(reader, headers)])
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[str]:
    """The data of each server-sent event."""
    buffer = b""
    async for chunk in _chunks(reader, headers):
        buffer += chunk
        while (end := buffer.find(b"\n\n")) >= 0:
            event, buffer = buffer[:end], buffer[end + 2 :]
            if event.startswith(b"data: "):
                yield event[6:].decode()


async def stream(host: str, port: int, path: str, body: dict[str, Any], cut_after: int | None = None) -> Answer:
    """Streams one chat or completion; with `cut_after`, closes the connection after that many text events."""
    answer = Answer(started=time.monotonic())
    raw = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await _open(host, port, "POST", path, raw)
    try:
        answer.status, headers = await _head(reader)
        if answer.status != 200:
            answer.error = b"".join([chunk async for chunk in _chunks(reader, headers)]).decode()
            return answer
        async for data in events(reader, headers):
            if data == "[DONE]":
                answer.done = True
                break
            _take(answer, json.loads(data))
            if cut_after is not None and len(answer.times) >= cut_after:
                answer.cut = True
                break
        return answer
    finally:
        writer.close()


def _take(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        answer.error = json.dumps(event["error"])
        return
    if event.get("usage"):
        answer.usage = event["usage"]
    for choice in event.get("choices", []):
        piece = choice["delta"].get("content") if "delta" in choice else choice.get("text")
        if piece:
            answer.text += piece
            answer.times.append(time.monotonic())
        if choice.get("finish_reason"):
            answer.finish = choice["finish_reason"]
