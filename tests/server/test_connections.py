"""Connections that say too little, too much or nothing that is HTTP; what the log says of them."""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from octavo.config import ServerConfig
from tests.support.serve import Serve
from tests.support.server import Server, echo_config, serving, wait_until

LIMIT = 4096


@pytest.fixture(scope="module")
def strict(tiny_path: Path) -> Iterator[Server]:
    what = echo_config(tiny_path)
    limits = ServerConfig(
        port=0,
        header_seconds=0.5,
        max_header_bytes=LIMIT,
        access_log=True,
        max_connections=20,
        body_seconds=0.5,
        send_seconds=1.0,
        max_pipelined=4,
        max_body_bytes=1 << 20,
        max_buffered_bytes=1 << 20,
    )
    with serving(Serve(what.engine, limits, what.module)) as server:
        yield server


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer(server: Server, *parts: bytes, end: bytes | None = None) -> bytes:
    """All that comes back until the server closes the connection, or until `end` has come."""
    received = b""
    with connect(server) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            while (end is None or end not in received) and (chunk := connection.recv(65536)):
                received += chunk
        except ConnectionError:
            pass  # it closed while we were still sending
    return received


def error(response: bytes, status: int) -> str:
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), response[:200]
    assert b"x-request-id: req-" in head
    return str(json.loads(body)["error"]["message"])


def test_a_silent_connection_is_closed_without_a_word(strict: Server) -> None:
    assert answer(strict) == b""


@pytest.mark.parametrize("start", [b"G", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nhost: a\r\nx", b"\r\n"])
def test_half_a_head_is_timed_out(strict: Server, start: bytes) -> None:
    assert "0.5 seconds" in error(answer(strict, start), 408)


def test_half_a_head_behind_an_answered_request_is_timed_out(strict: Server) -> None:
    whole = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
    response = answer(strict, whole + whole + b"GET /health HT")
    assert response.count(b"HTTP/1.1 200") == 2 and response.count(b"HTTP/1.1 408") == 1


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET /health HTTP/1.1\r\nx: " + b"a" * LIMIT + b"\r\n\r\n",),
        (b"GET /" + b"a" * LIMIT + b" HTTP/1.1\r\n\r\n",),
        (b"GET /health HTTP/1.1\r\n" + b"x: a\r\n" * LIMIT + b"\r\n",),
        (b"GET /health HTTP/1.1\r\nx: ", *[b"a" * 65536] * 50),
    ],
    ids=["one header", "path", "many headers", "endless"],
)
def test_a_head_over_the_limit_is_refused(strict: Server, parts: tuple[bytes, ...]) -> None:
    response = answer(strict, *parts)
    if response or len(parts) == 1:  # whoever still sends may see the connection reset instead
        assert str(LIMIT) in error(response, 431)
    assert strict.client.get("/health").status_code == 200


def test_what_is_no_http_is_refused_in_the_apis_shape(strict: Server) -> None:
    assert "HTTP/1.1" in error(answer(strict, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"), 400)


def test_a_body_may_be_larger_and_slower_than_a_head(strict: Server) -> None:
    body = json.dumps({"prompt": "x" * 300, "max_tokens": 1, "user": "x" * 4 * LIMIT}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert b" 200 " in answer(strict, head, body)


def test_compressed_bodies_are_refused(strict: Server) -> None:
    packed = gzip.compress(b'{"prompt": "a"}')
    for headers in ({"content-encoding": "gzip"}, {"content-encoding": "br"}, {}):
        response = strict.client.post("/v1/completions", content=packed, headers=headers)
        assert response.status_code == 415 and "compressed" in response.json()["error"]["message"]
    plain = strict.client.post("/v1/completions", json={"prompt": "a"}, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


def test_metrics_carry_the_request_id_too(strict: Server) -> None:
    assert strict.client.get("/metrics", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"


def test_requests_are_logged_where_asked_for(strict: Server) -> None:
    strict.client.get("/health?mark")
    wait_until(lambda: any('"GET /health?mark HTTP/1.1" 200' in line for line in strict.lines), "it is logged")


def test_the_end_of_the_file_descriptors_is_told_once(strict: Server) -> None:
    pid = strict.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        wait_until(lambda: any("no file descriptors are left" in line for line in strict.lines), "it is told")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert strict.client.get("/health").status_code == 200
    assert sum("no file descriptors" in line for line in strict.lines) == 1


def test_a_body_that_does_not_come_is_timed_out(strict: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"
    response = answer(strict, head, end=b'"error"')
    assert response.startswith(b"HTTP/1.1 408 ")


def test_one_connection_too_many_is_told_so_and_the_others_go_on(strict: Server) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(strict)) for _ in range(21)]
        for connection in held:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        answers = [connection.recv(65536)[:12] for connection in held]
    assert answers.count(b"HTTP/1.1 503") >= 1
    assert answers.count(b"HTTP/1.1 200") + answers.count(b"HTTP/1.1 503") == 21
    wait_until(lambda: health(strict), "it answers again")


def health(server: Server) -> bool:
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        return connection.recv(100).startswith(b"HTTP/1.1 200")


def test_requests_sent_far_ahead_end_the_connection(strict: Server) -> None:
    request = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
    assert answer(strict, request * 200).count(b"HTTP/1.1 200") < 10
    assert (
        answer(strict, request * 3 + request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")).count(b" 200 ")
        == 4
    )


def test_bodies_that_are_too_many_together_are_refused(strict: Server) -> None:
    half = b" " * (600 << 10)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (len(half) + 1)
    with connect(strict) as first:
        first.sendall(head + half)
        response = answer(strict, head + half, end=b'"error"')
        assert response.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in response
    wait_until(
        lambda: strict.post("/v1/completions", {"prompt": "ab", "max_tokens": 2}).status_code == 200, "all is back"
    )


def test_an_answer_that_nobody_takes_is_cut_off_and_the_connection_freed(strict: Server) -> None:
    body = json.dumps({"prompt": "abcdefgh", "max_tokens": 900, "ignore_eos": True, "logprobs": 20, "n": 8})
    with connect(strict) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body.encode())
        wait_until(
            lambda: strict.metric("octavo_http_responses_total", '{path="/v1/completions",status="200"}') > 1, "sent"
        )
        port = connection.getsockname()[1]
        wait_until(lambda: port not in peers(strict), "the connection is gone")


def peers(server: Server) -> set[int]:
    """Ports of the clients that the server's process is connected to."""
    return {each.raddr.port for each in psutil.Process(server.process.pid).net_connections("tcp") if each.raddr}
