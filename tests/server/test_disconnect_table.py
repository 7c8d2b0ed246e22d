"""The lifecycle table of the server: a client goes away in every state that its request may be in, streamed or not.

Each of its choices ends once, as aborted; nobody else notices; every block, task and connection is given back; no reply
is counted. tests/lifecycle/test_endings_table.py has the engine's side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_disconnects import open_request
from tests.support.server import Server, echo_config, serving, wait_until

Page = dict[str, float]
"""Metrics by name and labels."""
ENDS = {reason: f'octavo_requests_total{{finish_reason="{reason}"}}' for reason in ("stop", "length", "abort", "error")}
RUNNING, WAITING = "octavo_requests_running", "octavo_requests_waiting"
PROMPT, GENERATED = "octavo_prompt_tokens_total", "octavo_generated_tokens_total"
PREEMPTIONS = "octavo_preemptions_total"
LIVE = ("octavo_server_tasks", "octavo_http_connections")
REPLIES = ("octavo_reply_prompt_tokens_total", "octavo_reply_completion_tokens_total")


@pytest.fixture(scope="module")
def small(tiny_path: Path) -> Iterator[Server]:
    """Two requests at once, a pool that cannot hold two long ones, and chunks that make a long prompt last."""
    config = echo_config(tiny_path, max_model_len=4096, pool_tokens=4096, max_num_seqs=2, max_num_batched_tokens=16)
    with serving(config) as server:
        yield server


def _page(server: Server) -> Page:
    """All metrics at one moment."""
    lines = [line for line in server.client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def _body(prompt: int, tokens: int, first: int = 70, **fields: Any) -> dict[str, Any]:
    return {"prompt": [first] * prompt, "max_tokens": tokens, "ignore_eos": True, **fields}


@dataclass(frozen=True)
class State:
    """A request that its client will leave, and how to know that it is there."""

    body: dict[str, Any]
    reached: Callable[[Page, Page], bool]
    """Of the metrics before it was sent, and now."""
    choices: int = 1
    beside: tuple[dict[str, Any], ...] = ()
    """Requests that run before it comes, and still do when it has left."""


def _generated(before: Page, now: Page) -> bool:
    return now[GENERATED] > before[GENERATED] + 20


def _in_its_prompt(before: Page, now: Page) -> bool:
    return now[PROMPT] > before[PROMPT] and now[GENERATED] == before[GENERATED]


LONG = _body(8, 4000)
BESIDE = _body(8, 4000, first=71)
STATES = {
    "queued": State(LONG, lambda before, now: now[WAITING] == 1, beside=(BESIDE, BESIDE)),
    "prefilling": State(_body(3800, 100), _in_its_prompt),
    "decoding": State(LONG, _generated),
    "preempted": State(
        _body(1900, 2000),
        lambda before, now: now[PREEMPTIONS] > before[PREEMPTIONS] and now[WAITING] == 1,
        beside=(_body(1900, 2100, first=71),),
    ),
    # All of the answer may be the beginning of the stop text, so none of it is sent.
    "waiting on stop text": State({**LONG, "prompt": "abcdefgh", "stop": ["abcdefgh" * 127 + "x"]}, _generated),
    "choices that run and wait": State({**LONG, "n": 4}, lambda before, now: now[WAITING] == 2, choices=4),
    "choices behind the first one's prompt": State(_body(3800, 100, n=3), _in_its_prompt, choices=3),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_a_client_that_leaves(small: Server, name: str, stream: bool) -> None:
    state = STATES[name]
    wait_until(small.idle, "the engine is idle")
    start = _page(small)
    others = []
    for count, body in enumerate(state.beside, 1):
        others.append(open_request(small, body))
        wait_until(lambda count=count: small.metric(RUNNING) == count, "it runs")  # type: ignore[misc]
    before = _page(small)
    connection = open_request(small, {**state.body, "stream": stream})
    wait_until(lambda: state.reached(before, _page(small)), f"it is {name}")
    connection.close()
    wait_until(lambda: _ended(start, _page(small)) == (state.choices, 0), "it has left")
    wait_until(lambda: _holds(_page(small), len(others)), "it has left the engine, and the others run on")
    for other in others:
        other.close()
    _check_nothing_is_left(small, start, state.choices + len(others))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_client_that_leaves_with_its_last_token_on_the_way(small: Server, tokens: int, stream: bool) -> None:
    """Whichever comes first, it ends once."""
    wait_until(small.idle, "the engine is idle")
    start = _page(small)
    open_request(small, _body(8, tokens, stream=stream)).close()
    assert small.complete(prompt="next")["choices"][0]["text"] == "next"
    _check_all_is_back(small, start)
    assert sum(_ended(start, _page(small))) in (1, 2), "each ends once; one whose client left at once may never begin"


def _holds(now: Page, running: int) -> bool:
    return (now[RUNNING], now[WAITING]) == (running, 0)


def _ended(start: Page, now: Page) -> tuple[float, float]:
    """Choices that have ended since: aborted, and in any other way."""
    counts = {reason: now[name] - start[name] for reason, name in ENDS.items()}
    return counts.pop("abort"), sum(counts.values())


def _check_all_is_back(server: Server, start: Page) -> None:
    wait_until(server.idle, "all have left, and every block is free")
    wait_until(lambda: all(_page(server)[name] == start[name] for name in LIVE), "tasks and connections are gone")


def _check_nothing_is_left(server: Server, start: Page, aborted: int) -> None:
    _check_all_is_back(server, start)
    end = _page(server)
    assert _ended(start, end) == (aborted, 0)
    assert all(end[name] == start[name] for name in REPLIES), "nobody got a reply"
