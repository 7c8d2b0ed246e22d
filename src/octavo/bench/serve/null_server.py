"""A server that says nothing, exactly on time: what a load generator is checked against.

`python -m octavo.bench.serve.null_server [--rate R]` listens on a free port, prints its URL, and answers each
completion or chat with `max_tokens` events, R a second on each stream, whatever the load. `GET /log` gives the
monotonic moment before each event was sent, by the request's X-Request-Id. One thread that does not sleep in
the last 2 ms before an event, for a timer of the system would be late by more than what is measured. It ends with its
standard input.
"""

from __future__ import annotations

import heapq
import json
import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field

import click

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


@dataclass(order=True)
class _Stream:
    """One answer under way, ordered by when its next event is due."""

    due: float
    connection: socket.socket = field(compare=False)
    events: list[bytes] = field(compare=False)
    log: list[float] = field(compare=False)
    last: bytes = field(compare=False)


class NullServer:
    """See the module."""

    def __init__(self, rate: float, host: str = "127.0.0.1") -> None:
        self._gap = 1 / rate
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512
        )
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._inputs: dict[socket.socket, bytes] = {}
        self._streams: list[_Stream] = []
        self._log: dict[str, list[float]] = {}
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Until standard input ends."""
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        turn = 0
        while True:
            self._send_due()
            turn += 1
            # In a busy loop new connections are looked for in every 64th turn alone.
            if self._patience() == 0 and turn % 64:
                continue
            for key, _ in self._selector.select(self._patience()):
                if key.fd == sys.stdin.fileno():
                    if not os.read(sys.stdin.fileno(), 1):
                        return
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)

    def _patience(self) -> float | None:
        """How long to wait for connections: the system's timers are trusted to 2 ms."""
        return max(0.0, self._streams[0].due - time.monotonic() - 0.002) if self._streams else None

    def _send_due(self) -> None:
        streams = self._streams
        while streams and streams[0].due <= time.monotonic():
            stream = streams[0]
            data = stream.events.pop()
            stream.log.append(time.monotonic())
            try:
                stream.connection.send(data)
                if not stream.events:
                    stream.connection.send(stream.last)
            except OSError:
                stream.events.clear()
                self._close(stream.connection)
            if stream.events:
                stream.due += self._gap
                heapq.heapreplace(streams, stream)
            else:
                heapq.heappop(streams)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._inputs[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _close(self, connection: socket.socket) -> None:
        if connection in self._inputs:
            del self._inputs[connection]
            self._selector.unregister(connection)
            connection.close()

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        head, found, body = (self._inputs[connection] + data).partition(b"\r\n\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.decode().split("\r\n")[1:])
        }
        if not found or len(body) < int(headers.get("content-length", 0)):
            self._inputs[connection] += data
            return
        self._inputs[connection] = b""
        self._answer(connection, head.split(b" ", 2)[:2], headers, body)

    def _answer(self, connection: socket.socket, what: list[bytes], headers: dict[str, str], body: bytes) -> None:
        if what[0] == b"POST":
            self._begin(
                connection, json.loads(body), headers.get("x-request-id", ""), what[1].endswith(b"/chat/completions")
            )
            return
        reply: object = {"object": "list", "data": [{"id": "null", "object": "model", "max_model_len": 1 << 30}]}
        if what[1] == b"/log":
            reply, self._log = self._log, {}
        raw = json.dumps(reply).encode()
        connection.setblocking(True)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(raw), raw))
        connection.setblocking(False)

    def _begin(self, connection: socket.socket, body: dict[str, object], name: str, chat: bool) -> None:
        count = int(str(body.get("max_tokens") or body.get("max_completion_tokens") or 16))
        piece = b'"delta":{"content":" a"}' if chat else b'"text":" a"'
        start = b'{"id":"null","object":"chunk","created":0,"model":"null","choices":[{"index":0,' + piece
        event = _chunk(start + b',"finish_reason":null}]}')
        final = _chunk(start + b',"finish_reason":"length"}]}')
        prompt = body.get("prompt")
        asked = len(prompt) if isinstance(prompt, list) else len(str(prompt or body.get("messages")).split())
        usage = {"prompt_tokens": asked, "completion_tokens": count, "total_tokens": asked + count}
        last = _chunk(json.dumps({"choices": [], "usage": usage}).encode()) + _chunk(b"[DONE]") + b"0\r\n\r\n"
        log = self._log.setdefault(name, [])
        connection.send(_HEAD)
        # Events are taken from the end, so the first of the list is the last to go.
        stream = _Stream(time.monotonic() + self._gap, connection, [final] + [event] * (count - 1), log, last)
        heapq.heappush(self._streams, stream)


@click.command()
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=5000.0, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
def main(rate: float, host: str) -> None:
    """Serve events at a rate."""
    server = NullServer(rate, host)
    click.echo(f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}")
    sys.stdout.flush()
    server.run()


if __name__ == "__main__":
    main()
