"""Kinds of fault seen in other engines, as small cases at a real server: G3 and H3."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.test_streams import joined
from tests.support.server import Server, echo_config, serving, wait_until


@pytest.fixture(scope="module")
def chunked(tiny_path: Path) -> Iterator[Server]:
    """Prompts in chunks of 8."""
    with serving(echo_config(tiny_path, max_num_batched_tokens=8)) as server:
        yield server


@pytest.mark.parametrize("logprobs", [None, 2])
def test_g3_a_partial_prompt_says_nothing_and_the_first_token_is_timed_once(
    chunked: Server, logprobs: int | None
) -> None:
    names = ("octavo_steps_total", "octavo_time_to_first_token_seconds_count", "octavo_time_to_first_token_seconds_sum")
    before = [chunked.metric(name) for name in names]
    prompt = [70 + (logprobs or 0), *range(70, 119)]
    events = chunked.stream(
        "/v1/completions", {"prompt": prompt, "max_tokens": 3, "ignore_eos": True, "logprobs": logprobs}
    )
    whole = chunked.complete(prompt=prompt, max_tokens=3, ignore_eos=True, logprobs=logprobs, cache_salt="other")
    assert joined(events) == whole["choices"][0]["text"]
    if logprobs is not None:
        found = [choice["logprobs"] for event in events for choice in event["choices"] if choice["logprobs"]]
        assert [value for chunk in found for value in chunk["token_logprobs"]] == [-0.5] * 3
    steps, first, seconds = (chunked.metric(name) - old for name, old in zip(names, before, strict=True))
    assert steps == 2 * (7 + 2), "seven chunks of at most 8, the last of which draws"
    assert first == 2 and seconds >= 2 * 7 * 0.001, "a step takes a millisecond"


def _deep(levels: int) -> dict[str, Any]:
    leaf = {"type": "string"}
    return {"anyOf": [leaf if levels == 0 else _deep(levels - 1), *[{"const": f"{levels} {i}"} for i in range(4)]]}


@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_h3_schemas_cost_a_refusal_and_no_work(chunked: Server, key: str) -> None:
    """Grammars are not built: a schema of any depth is refused at once, and a plain request beside it goes on."""
    text = _deep(12) if key == "anyOf" else {"oneOf": [_deep(11)] * 2}
    body = {
        "prompt": "a",
        "response_format": {"type": "json_schema", "json_schema": {"name": "deep", "schema": text}},
    }
    wait_until(chunked.idle, "the engine is idle")
    steps = chunked.metric("octavo_steps_total")
    answers: list[tuple[float, httpx.Response]] = []

    def ask() -> None:
        began = time.monotonic()
        response = httpx.post(chunked.url + "/v1/completions", json=body, timeout=2)
        answers.append((time.monotonic() - began, response))

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert chunked.complete(prompt="plain", max_tokens=5)["choices"][0]["text"] == "plain"
    for thread in threads:
        thread.join()
    assert len(answers) == 5
    for seconds, response in answers:
        assert response.status_code == 400 and response.json()["error"]["param"] == "response_format"
        assert seconds < 2 and len(response.content) < 1000
    wait_until(chunked.idle, "the engine is idle again")
    plain = chunked.metric("octavo_steps_total") - steps
    assert plain <= 6, "the plain request's steps, and no others"
