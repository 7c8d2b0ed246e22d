"""The lifecycle table of the server: a client goes away in every state that its request may be in. It leaves the
engine, nobody else notices, every block is free, and it is counted once as aborted.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_disconnects import LONG, open_request, running
from tests.support.server import Server, echo_config, serving, wait_until

ABORTED = '{finish_reason="abort"}'


@pytest.fixture(scope="module")
def small(tiny_path: Path) -> Iterator[Server]:
    """Two requests at once, a pool that cannot hold both to their end, and chunks that make long prompts last."""
    config = echo_config(tiny_path, max_model_len=4096, pool_tokens=4096, max_num_seqs=2, max_num_batched_tokens=32)
    with serving(config) as server:
        yield server


def _preemptions(server: Server) -> float:
    return server.metric("octavo_preemptions_total")


def _decoding(server: Server) -> tuple[dict[str, Any], Callable[[], bool], int]:
    before = server.metric("octavo_generated_tokens_total")
    return {**LONG, "max_tokens": 4000}, lambda: server.metric("octavo_generated_tokens_total") > before + 20, 1


def _prefilling(server: Server) -> tuple[dict[str, Any], Callable[[], bool], int]:
    before = server.metric("octavo_prompt_tokens_total")
    body = {**LONG, "prompt": "abcdefgh " * 400, "max_tokens": 100}
    return body, lambda: before < server.metric("octavo_prompt_tokens_total") < before + 3000, 1


def _stop_text(server: Server) -> tuple[dict[str, Any], Callable[[], bool], int]:
    """The whole answer may yet be the beginning of the stop text, so none of it was sent."""
    before = server.metric("octavo_generated_tokens_total")
    body = {**LONG, "max_tokens": 4000, "stop": ["abcdefgh" * 400 + "x"], "stream": True}
    return body, lambda: server.metric("octavo_generated_tokens_total") > before + 20, 1


def _choices(server: Server) -> tuple[dict[str, Any], Callable[[], bool], int]:
    return {**LONG, "max_tokens": 500, "n": 4}, lambda: server.metric("octavo_requests_waiting") == 2, 4


@pytest.mark.parametrize("state", [_decoding, _prefilling, _stop_text, _choices])
def test_a_client_that_leaves_alone(small: Server, state: Callable[..., Any]) -> None:
    wait_until(small.idle, "the engine is idle")
    aborted = _aborted(small)
    body, reached, count = state(small)
    connection = open_request(small, body)
    wait_until(reached, "the state is reached")
    connection.close()
    wait_until(small.idle, "it has left, and all blocks are free")
    wait_until(lambda: _aborted(small) == aborted + count, "it is counted")


def test_a_client_that_leaves_while_its_request_is_queued(small: Server) -> None:
    wait_until(small.idle, "the engine is idle")
    aborted = _aborted(small)
    first = [open_request(small, {**LONG, "max_tokens": 4000, "prompt": "ab"}) for _ in range(2)]
    wait_until(lambda: running(small, 2), "two are running")
    queued = open_request(small, {**LONG, "max_tokens": 10})
    wait_until(lambda: small.metric("octavo_requests_waiting") == 1, "one is queued")
    queued.close()
    wait_until(lambda: _aborted(small) == aborted + 1, "it has left")
    assert running(small, 2)
    _leave(small, first)


def test_a_client_that_leaves_while_its_request_is_preempted(small: Server) -> None:
    wait_until(small.idle, "the engine is idle")
    aborted, before = _aborted(small), _preemptions(small)
    body = {**LONG, "max_tokens": 3900}
    older = open_request(small, body)
    wait_until(lambda: running(small, 1), "one is running")
    younger = open_request(small, body)
    wait_until(lambda: _preemptions(small) > before, "one was preempted")
    younger.close()
    wait_until(lambda: _aborted(small) == aborted + 1, "it has left")
    _leave(small, [older])


def test_a_client_that_leaves_with_its_last_token_on_the_way(small: Server) -> None:
    """Whichever comes first, it is counted once."""
    wait_until(small.idle, "the engine is idle")
    for tokens in (1, 2, 3):
        before = _ended(small)
        connection = open_request(small, {**LONG, "max_tokens": tokens, "stream": True})
        connection.close()
        wait_until(small.idle, "it is over")
        wait_until(lambda before=before: _ended(small) in (before, before + 1), "it is counted once at most")  # type: ignore[misc]
    assert small.complete(prompt="next")["choices"][0]["text"] == "next"


def _leave(server: Server, connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()
    wait_until(server.idle, "all have left, and all blocks are free")


def _aborted(server: Server) -> float:
    return _count(server, ABORTED)


def _ended(server: Server) -> float:
    return sum(_count(server, f'{{finish_reason="{reason}"}}') for reason in ("abort", "length", "stop"))


def _count(server: Server, labels: str) -> float:
    text = server.client.get("/metrics").text
    return server.metric("octavo_requests_total", labels) if f"octavo_requests_total{labels}" in text else 0.0
