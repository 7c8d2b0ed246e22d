"""A hundred kinds of absurd request: each is refused with a small 4xx, and the server is as before."""

from __future__ import annotations

import json
import random
import secrets

import pytest

from benchmarks.absurd_kinds import KINDS
from tests.server.test_connections import connect
from tests.support.server import Server, wait_until


def test_there_are_a_hundred_kinds() -> None:
    assert len(KINDS) >= 100


@pytest.mark.parametrize("name", KINDS)
def test_each_is_refused(echo: Server, name: str) -> None:
    seed = secrets.randbits(32)
    raw = KINDS[name](random.Random(seed))
    with connect(echo) as connection:
        try:
            connection.sendall(raw.content)
        except ConnectionError:
            pass  # refused before all of it was sent
        received = b""
        while b"\r\n\r\n" not in received or not _whole(received):
            chunk = connection.recv(65536)
            if not chunk:
                break
            received += chunk
    assert received[:10] == b"HTTP/1.1 4", (seed, received[:300])
    head, _, body = received.partition(b"\r\n\r\n")
    assert len(body) < 1024 and json.loads(body)["error"]["message"], (seed, head)


def _whole(received: bytes) -> bool:
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and len(body) >= lengths[0]


def test_nothing_is_left_of_them(echo: Server) -> None:
    wait_until(echo.idle, "nothing runs, and every block is free")
    assert echo.complete(prompt="ok", max_tokens=5)["choices"][0]["text"] == "ok"
