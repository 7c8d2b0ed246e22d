"""One client's connection: uvicorn's HTTP/1.1 protocol with bounds on the request's head.

Life of a head (the request line and the headers): its clock starts with the connection, or with the first byte after
the request before -> bytes are counted as they come -> complete, and uvicorn goes on. A head that is late or too large
ends the connection with 408 or 431, and what is no HTTP with 400, all in the API's error shape. A connection that
never said anything is just closed. One connection too many gets 503 and ends; one that sends too many requests ahead
just ends. Once an answer is complete, or a connection is to close, its last bytes have `send_seconds` to be taken.
Off switch: none; `ServerConfig` sets the bounds.
"""

from __future__ import annotations

import asyncio
import uuid
from asyncio.events import TimerHandle
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.config import ServerConfig
from octavo.server.errors import error_body

_FIELD_OVERHEAD = 4
"""The colon, the space and the line's end."""


class _HeadTooLarge(Exception):
    """Leaves the parser."""


class Connection(HttpToolsProtocol):
    """See the module."""

    def __init__(self, *arguments: Any, limits: ServerConfig, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._in_head = True
        self._raw = 0
        """Bytes that have come for an unfinished head."""
        self._size = 0
        """Bytes of its finished fields."""
        self._clock: TimerHandle | None = None
        self._flush: TimerHandle | None = None
        """Ends the connection where nobody takes the last bytes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, f"{self._limits.max_connections} connections are open; try again in a moment.")
            return
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._raw += len(data)
            self._start_clock()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # no other protocol is spoken here; the request has been taken as it is
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _HeadTooLarge):
                self._refuse_size()
            else:
                self._refuse(400, "This is no HTTP/1.1 request; check its request line and headers.")
            return
        if self._in_head and self._raw > self._limits.max_header_bytes:
            self._refuse_size()

    # --- the parser's calls ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._size = 0
        self._raw = max(self._raw, 1)
        self._start_clock()
        super().on_message_begin()
        self.scope["extensions"] = {"octavo.abort": self._abort}  # type: ignore[dict-item]

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value) + _FIELD_OVERHEAD)
        super().on_header(name, value)

    def _grow(self, count: int) -> None:
        self._size += count
        if self._in_head and self._size > self._limits.max_header_bytes:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_clock()
        super().on_headers_complete()
        if len(self.pipeline) > self._limits.max_pipelined:
            self.pipeline.clear()
            self._close()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._raw = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self._watch_flush()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._watch_flush()

    # --- the clock and the refusals -------------------------------------------------------------------

    def _start_clock(self) -> None:
        if self._clock is None:
            self._clock = self.loop.call_later(self._limits.header_seconds, self._late)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _late(self) -> None:
        self._clock = None
        if self.answering():
            self._start_clock()  # a request sent ahead while another one is answered: reading may be paused
        elif self._raw:
            self._refuse(408, f"The request's head did not come within {self._limits.header_seconds:g} seconds.")
        else:
            self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
        self._watch_flush()

    def _abort(self) -> None:
        """What is not sent yet never will be."""
        self.transport.abort()

    def _watch_flush(self) -> None:
        """A closed connection lives until its client has taken the last byte, which may be never."""
        if self._flush is None:
            self._flush = self.loop.call_later(self._limits.send_seconds, self._flushed)

    def _flushed(self) -> None:
        self._flush = None
        if self.transport.is_closing() or (not self.answering() and self.transport.get_write_buffer_size()):
            self.transport.abort()

    def answering(self) -> bool:
        """A request has been taken, and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse_size(self) -> None:
        limit = self._limits.max_header_bytes
        self._refuse(431, f"The request line and headers are over the limit of {limit} bytes; send less.")

    def _refuse(self, status: int, message: str) -> None:
        """An error response and the end; where an answer is on its way, the end alone."""
        self._stop_clock()
        if self.transport.is_closing():
            return
        if not self.answering():
            body = error_body(message, status)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nx-request-id: req-{uuid.uuid4().hex}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        self._close()


def connections(limits: ServerConfig) -> Any:
    """What uvicorn makes connections with."""
    return partial(Connection, limits=limits)
