"""The one HTTP client of the project's measurements: asyncio protocols on plain sockets, no SDK, so that measuring
costs little of the machine that is measured.

Owns the connections to one server. `stream` sends a completion or chat and notes when each event arrived, at the
moment the bytes are read; it never raises for what the server or the network does: that is in the answer. `request`
is for everything else. Life: `async with Client(target) as client`. Off switch of connection reuse: `reuse=False`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, cast

import msgspec

from octavo.bench.serve.answer import Answer, Event, decode_event
from octavo.bench.serve.reader import SSE, BrokenResponse, Response
from octavo.bench.serve.target import Target

_ERROR_BODY = 1 << 16
_END_SECONDS = 0.1
"""A server that ends no response after the end marker is waited for so long, outside of all times."""


class _Exchange:
    """One request and its response. `over` is set when the answer is decided."""

    def __init__(self, answer: Answer, loop: asyncio.AbstractEventLoop, streamed: bool, keep: bool, cut: int) -> None:
        self.answer = answer
        self.over: asyncio.Future[None] = loop.create_future()
        self.body = bytearray()
        self.response = Response(self._on_body)
        self.touched = False
        self._sse = SSE() if streamed else None
        self._keep = keep
        self._cut = cut
        self._now = 0.0

    def feed(self, data: bytes, now: float) -> None:
        """Bytes that arrived at `now`."""
        self.touched = True
        self._now = now
        try:
            self.response.feed(data)
        except (BrokenResponse, msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            self.fail("malformed", str(error))
        self.answer.status = self.response.status
        if self.response.complete:
            self._whole()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self.response.end() and error is None:
            self._whole()
        elif error is not None:
            self.fail("reset", f"{error} after {len(self.answer.times)} events")
        else:
            self.fail("truncated", f"the connection ended after {len(self.answer.times)} events")

    def fail(self, kind: str, detail: str) -> None:
        if not self.over.done():
            if not self.answer.done:
                self.answer.fail(kind, detail)
            self._finish()

    def _finish(self) -> None:
        if not self.over.done():
            if not self.answer.ended:
                self.answer.ended = self._now
            self.over.set_result(None)

    def _on_body(self, part: bytes) -> None:
        if self._sse is None or self.response.status != 200:
            if self._sse is None or len(self.body) < _ERROR_BODY:
                self.body += part
            return
        for data in self._sse.feed(part):
            if self.over.done() or self.answer.done:
                return
            if data == b"[DONE]":
                self._marked()
            else:
                self._on_event(decode_event(data))

    def _on_event(self, event: Event) -> None:
        answer = self.answer
        if event.error is not None:
            self.fail("error event", str(event.error))
            return
        if event.usage is not None:
            usage = event.usage
            answer.prompt_tokens, answer.completion_tokens = usage.prompt_tokens, usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                answer.cached_tokens = usage.prompt_tokens_details.cached_tokens
        for choice in event.choices or ():
            if said := choice.said:
                answer.times.append(self._now)
                if self._keep:
                    answer.pieces.append(said)
                if self._cut and len(answer.times) >= self._cut:
                    answer.cut = True
                    self._finish()
                    return
            if choice.finish_reason:
                answer.finish = choice.finish_reason

    def _marked(self) -> None:
        """The end marker came; the response's end follows, and frees the connection for the next request."""
        self.answer.done = True
        self.answer.ended = self._now
        self.over.get_loop().call_later(_END_SECONDS, self._finish)

    def _whole(self) -> None:
        """The response is whole: whether that makes the answer whole."""
        answer = self.answer
        if self._sse is None:
            self._finish()
        elif answer.status != 200:
            self.fail(f"http {answer.status}", bytes(self.body).decode(errors="replace"))
        elif not answer.done and answer.finish is None:
            self.fail("truncated", f"the stream ended without an end after {len(answer.times)} events")
        else:
            self._finish()


@dataclass
class _Pool:
    """Connections of one client."""

    reuse: bool
    idle: list[_Wire] = field(default_factory=list)
    open: set[_Wire] = field(default_factory=set)


class _Wire(asyncio.Protocol):
    """One connection."""

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool
        self.exchange: _Exchange | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._pool.open.add(self)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        exchange = self.exchange
        if exchange is None:
            self.transport.abort()
            return
        exchange.feed(data, now)
        if exchange.response.complete:
            self.exchange = None
            if self._pool.reuse and exchange.response.keeps_alive:
                self._pool.idle.append(self)
            else:
                self.transport.close()
        elif exchange.answer.failure or exchange.answer.cut:
            self.exchange = None
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.open.discard(self)
        if self in self._pool.idle:
            self._pool.idle.remove(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.lost(exc)

    def carry(self, exchange: _Exchange, message: bytes) -> None:
        """Sends a request; the connection may have ended meanwhile."""
        if self.transport.is_closing():
            exchange.lost(None)
            return
        self.exchange = exchange
        self.transport.write(message)

    def drop(self) -> None:
        """Ends the connection whatever it carries."""
        self.exchange = None
        self.transport.abort()


class Client:
    """See the module."""

    def __init__(
        self, target: Target, reuse: bool = True, timeout: float | None = None, keep_text: bool = False
    ) -> None:
        self.target = target
        self._pool = _Pool(reuse)
        self._timeout = timeout
        self._keep_text = keep_text
        self.opened = 0
        """Connections so far."""
        self.resent = 0
        """Requests that a reused connection lost before any byte of an answer, and that were sent again."""

    async def stream(
        self, path: str, body: bytes, request_id: str = "", due: float | None = None, cut_after: int = 0
    ) -> Answer:
        """Sends one request whose body says `stream`; with `cut_after`, hangs up after that many text events."""
        sent = time.monotonic()
        answer = Answer(due=sent if due is None else due, sent=sent)
        await self._run(answer, self._message("POST", path, body, request_id), True, cut_after)
        return answer

    async def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """One plain request; status and body. Raises ConnectionError where there is no answer."""
        answer = Answer(sent=time.monotonic())
        raw = b"" if body is None else msgspec.json.encode(body)
        exchange = await self._run(answer, self._message(method, path, raw, ""), False, 0)
        if answer.failure or exchange is None:
            raise ConnectionError(f"{method} {self.target.url}{path}: {answer.failure}: {answer.detail}")
        return answer.status, bytes(exchange.body)

    async def _run(self, answer: Answer, message: bytes, streamed: bool, cut_after: int) -> _Exchange | None:
        exchange: _Exchange | None = None
        wire: _Wire | None = None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    reused = bool(self._pool.idle)
                    wire = self._pool.idle.pop() if reused else await self._connect(loop)
                    exchange = _Exchange(answer, loop, streamed, self._keep_text, cut_after)
                    wire.carry(exchange, message)
                    await exchange.over
                    # The server may close an idle connection just as it is used again: that is no failure of it.
                    if not (reused and answer.failure in ("reset", "truncated") and not exchange.touched):
                        return exchange
                    answer.failure, answer.detail = None, ""
                    self.resent += 1
        except TimeoutError:
            answer.fail("timeout", f"not within {self._timeout} s; {len(answer.times)} events had come")
        except ConnectionRefusedError as error:
            answer.fail("refused", str(error))
        except OSError as error:
            answer.fail("unreachable", str(error))
        finally:
            if wire is not None and exchange is not None and wire.exchange is exchange and not exchange.over.done():
                wire.drop()
        answer.ended = answer.ended or time.monotonic()
        return exchange

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Wire:
        target = self.target
        _, wire = await loop.create_connection(lambda: _Wire(self._pool), target.host, target.port, ssl=target.tls)
        self.opened += 1
        return wire

    def _message(self, method: str, path: str, body: bytes, request_id: str) -> bytes:
        head = self.target.head(method, path, self._pool.reuse)
        if request_id:
            head += f"X-Request-Id: {request_id}\r\n".encode()
        kind = b"Content-Type: application/json\r\n" if body else b""
        return head + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for wire in list(self._pool.open):
            wire.drop()
        # Transports close in the loop's next turn.
        await asyncio.sleep(0)


async def fetch(target: Target, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """One plain request on a connection of its own."""
    async with Client(target, reuse=False) as client:
        return await client.request(method, path, body)


async def stream_once(target: Target, path: str, body: dict[str, object], cut_after: int = 0) -> Answer:
    """One streamed request on a connection of its own, its text kept and usage asked for."""
    raw = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
    async with Client(target, reuse=False, keep_text=True) as client:
        return await client.stream(path, raw, cut_after=cut_after)
