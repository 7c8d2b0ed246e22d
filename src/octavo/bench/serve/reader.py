"""Reads one HTTP/1.1 response as its bytes arrive: status, headers, body by chunks, length or end of connection.

No input or output of its own: `feed` takes bytes, and hands parts of the body on. `SSE` cuts a body into the data of
server-sent events. Both take the common case (one event in one chunk in one read) on a short path, which is what lets
one core follow 25 000 events a second. Life: one of each for one response.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD_LIMIT = 1 << 16
_PENDING_LIMIT = 1 << 24
_HEX = b"0123456789abcdefABCDEF"


class BrokenResponse(Exception):
    """The bytes are not HTTP, or not server-sent events."""


class Response:
    """Status and headers once they are there; `complete` when the body is whole."""

    __slots__ = ("_body", "_left", "_mode", "_pending", "complete", "headers", "status")

    def __init__(self, body: Callable[[bytes], None]) -> None:
        self._body = body
        self._pending = b""
        self._mode = "head"
        self._left = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False

    def feed(self, data: bytes) -> None:
        """More bytes of the connection. Raises BrokenResponse."""
        if self._pending:
            data, self._pending = self._pending + data, b""
        if self._mode == "head":
            data = self._read_head(data)
        if self._mode == "chunked" and not self.complete:
            self._read_chunks(data)
        elif self._mode == "length":
            self._read_length(data)
        elif self._mode == "until close" and data:
            self._body(data)

    def end(self) -> bool:
        """The connection ended; whether the body is whole."""
        if self._mode == "until close":
            self.complete = True
        return self.complete

    @property
    def keeps_alive(self) -> bool:
        """The connection may carry another request after this one."""
        return self.complete and self._mode != "until close" and self.headers.get("connection", "").lower() != "close"

    def _read_head(self, data: bytes) -> bytes:
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > HEAD_LIMIT or not b"HTTP/1.".startswith(data[:7]):
                    raise BrokenResponse(f"the response begins with {data[:40]!r}, which is not HTTP/1.1")
                self._pending = data
                return b""
            self._parse_head(data[:end])
            data = data[end + 4 :]
            if self.status >= 200:
                break
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._mode = "chunked"
        elif "content-length" in self.headers or self.status in (204, 304):
            self._mode = "length"
            length = self.headers.get("content-length", "0")
            if not length.isdecimal():
                raise BrokenResponse(f"content-length {length!r} is no number")
            self._left = int(length)
            self.complete = self._left == 0
        else:
            self._mode = "until close"
        return data

    def _parse_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdecimal():
            raise BrokenResponse(f"{first[:80]!r} is no status line of HTTP/1.1")
        self.status = int(parts[1])
        self.headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()

    def _read_length(self, data: bytes) -> None:
        if data and self._left:
            part = data[: self._left]
            self._left -= len(part)
            self._body(part)
        self.complete = self._left == 0

    def _read_chunks(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size:
            line = data.find(b"\r\n", at)
            if line < 0:
                if size - at > 1024:
                    raise BrokenResponse(f"{data[at : at + 40]!r} is no length of a chunk")
                break
            digits = data[at:line].partition(b";")[0].strip()
            if not digits or digits.strip(_HEX):
                raise BrokenResponse(f"{data[at:line][:40]!r} is no length of a chunk")
            length = int(digits, 16)
            if length == 0:
                # Trailers end with an empty line; none at all is that line alone.
                if not data.endswith(b"\r\n\r\n") and data[line : line + 4] != b"\r\n\r\n":
                    break
                self.complete = True
                return
            end = line + 2 + length
            if end + 2 > size:
                break
            if data[end : end + 2] != b"\r\n":
                raise BrokenResponse("a chunk is longer than its length says")
            self._body(data[line + 2 : end])
            at = end + 2
        if at < size:
            self._pending = data[at:]
            if len(self._pending) > _PENDING_LIMIT:
                raise BrokenResponse(f"a chunk is longer than {_PENDING_LIMIT} bytes")


class SSE:
    """`feed` gives the data of each event that is complete."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, part: bytes) -> list[bytes]:
        """Data of the events that end in this part."""
        if (
            not self._pending
            and part.startswith(b"data: ")
            and part.find(b"\n") == len(part) - 2
            and part[-1:] == b"\n"
        ):
            return [part[6:-2]]
        data = (self._pending + part).replace(b"\r\n", b"\n")
        *events, self._pending = data.split(b"\n\n")
        if len(self._pending) > _PENDING_LIMIT:
            raise BrokenResponse(f"an event is longer than {_PENDING_LIMIT} bytes")
        return [found for event in events if (found := _data(event)) is not None]

    @property
    def pending(self) -> bool:
        """An event has begun that has not ended."""
        return bool(self._pending.strip())


def _data(event: bytes) -> bytes | None:
    """The data lines of one event; None for comments and pings."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
