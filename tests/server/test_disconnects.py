"""Clients that go away: their requests leave the engine at once, streamed or not, and nothing is leaked."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.server.test_streams import joined
from tests.support.server import Server, echo_config, serving, wait_until

LONG = {"prompt": "abcdefgh", "max_tokens": 8000, "ignore_eos": True}


@pytest.fixture(scope="module")
def narrow(tiny_path: Path) -> Iterator[Server]:
    """One request runs at a time, and long ones are possible."""
    with serving(echo_config(tiny_path, max_model_len=8192, max_num_seqs=1)) as server:
        yield server


@pytest.fixture(scope="module")
def wide(tiny_path: Path) -> Iterator[Server]:
    with serving(echo_config(tiny_path, max_model_len=8192, pool_tokens=32768)) as server:
        yield server


def open_request(server: Server, body: dict[str, Any]) -> socket.socket:
    """Sends a completion and leaves the answer unread."""
    address = urlsplit(server.url)
    assert address.hostname is not None and address.port is not None
    content = json.dumps(body).encode()
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(content) + content
    )
    return connection


def running(server: Server, count: int) -> bool:
    return server.metric("octavo_requests_running") == count


@pytest.mark.parametrize("stream", [False, True])
def test_requests_whose_clients_left_are_gone_within_a_second(wide: Server, stream: bool) -> None:
    connections = [open_request(wide, {**LONG, "stream": stream}) for _ in range(20)]
    wait_until(lambda: running(wide, 20), "all are running")
    for connection in connections:
        connection.close()
    assert wait_until(wide.idle, "all have left") < 2.0
    assert wide.complete(prompt="next")["choices"][0]["text"] == "next"


def test_every_choice_of_a_client_that_left_is_ended(wide: Server) -> None:
    connection = open_request(wide, {**LONG, "n": 4, "prompt": ["ab", "cd"]})
    wait_until(lambda: running(wide, 8), "all choices are running")
    connection.close()
    wait_until(wide.idle, "all have left")


def test_waiting_requests_leave_the_queue(narrow: Server) -> None:
    shared = "a prefix that several requests share, of more than a block of tokens "
    first = open_request(narrow, {**LONG, "prompt": shared})
    wait_until(lambda: running(narrow, 1), "one is running")
    waiting = [open_request(narrow, {**LONG, "prompt": shared + str(i)}) for i in range(5)]
    wait_until(lambda: narrow.metric("octavo_requests_waiting") == 5, "five are waiting")
    for connection in waiting:
        connection.close()
    wait_until(lambda: narrow.metric("octavo_requests_waiting") == 0, "the queue is empty")
    assert running(narrow, 1)
    first.close()
    wait_until(narrow.idle, "all have left")


def test_a_client_that_never_reads_does_not_hold_up_others(wide: Server) -> None:
    lazy = open_request(wide, {**LONG, "stream": True, "logprobs": 5})
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    events = wide.stream("/v1/completions", {"prompt": "swift", "max_tokens": 100})
    assert joined(events) == "swift"
    lazy.close()
    wait_until(wide.idle, "all have left")


def test_a_client_that_leaves_before_its_body_is_complete_is_forgotten(wide: Server) -> None:
    connection = open_request(wide, LONG)
    connection.close()
    half = socket.create_connection((urlsplit(wide.url).hostname or "", urlsplit(wide.url).port or 0))
    half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\n{")
    half.close()
    wait_until(wide.idle, "all have left")


def test_thirty_streams_with_a_third_leaving_end_with_a_full_pool(wide: Server) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    failures: list[str] = []

    def read(number: int, tokens: int) -> None:
        body = {"prompt": f"stream {number} ", "max_tokens": tokens, "ignore_eos": True}
        text = joined(wide.stream("/v1/completions", body))
        if text != (f"stream {number} " * tokens)[: len(text)] or len(text) < tokens // 2:
            failures.append(f"stream {number} said {text[:40]!r}")

    def leave() -> None:
        connection = open_request(wide, {**LONG, "stream": True})
        connection.recv(rng.randrange(1, 4000))
        connection.close()

    readers = [threading.Thread(target=read, args=(i, rng.randrange(20, 200))) for i in range(20)]
    leavers = [threading.Thread(target=leave) for _ in range(10)]
    threads = readers + leavers
    rng.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, (seed, failures)
    wait_until(wide.idle, f"the pool is full again (seed {seed})")
