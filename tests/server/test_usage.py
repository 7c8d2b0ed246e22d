"""Usage: shown when asked for, equal streamed and not, cached tokens counted once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.echo_engine import FAIL
from tests.support.server import Server


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_a_stream_that_did_not_ask_shows_no_usage(echo: Server, options: Any) -> None:
    events = echo.stream("/v1/completions", {"prompt": "abc", "stream_options": options})
    assert all(event.get("usage") is None and event["choices"] for event in events)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "abc"},
        {"prompt": "abc", "n": 2},
        {"prompt": ["abc", "defgh"], "n": 2},
        {"prompt": "a longer one with a stop", "max_tokens": 50, "stop": "with"},
        {"prompt": "abc", "max_tokens": 2},
        {"prompt": "abc", "max_tokens": 40, "ignore_eos": True, "logprobs": 1},
    ],
    ids=repr,
)
def test_a_stream_that_asked_ends_with_one_usage_chunk_equal_to_the_bodys(echo: Server, fields: dict[str, Any]) -> None:
    events = echo.stream("/v1/completions", {**fields, "stream_options": {"include_usage": True}})
    with_usage = [event for event in events if event.get("usage") is not None]
    assert with_usage == [events[-1]] and events[-1]["choices"] == []
    assert events[-1]["usage"] == echo.complete(**fields)["usage"]


def test_usage_sums_choices_and_counts_a_prompt_once(echo: Server) -> None:
    usage = echo.complete(prompt=["abc", "defgh"], n=3)["usage"]
    assert usage["prompt_tokens"] == 8
    assert usage["completion_tokens"] == 3 * (4 + 6)
    assert usage["total_tokens"] == 8 + 30


def test_a_failed_stream_that_asked_still_ends_with_usage_and_done(echo: Server) -> None:
    fields = {"prompt": [FAIL, 3, 10], "max_tokens": 50, "stream_options": {"include_usage": True}}
    events = echo.stream("/v1/completions", fields)
    assert "error" in events[-2]
    assert events[-1]["usage"]["completion_tokens"] == 3


def test_cached_tokens_are_none_when_cold_and_whole_blocks_afterwards(tiny: Server) -> None:
    prompt = [(7 * i) % 250 + 3 for i in range(70)]
    details = [
        tiny.complete(prompt=prompt, n=3, max_tokens=2)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert details == [0, 64]


def test_the_choices_of_a_prompt_share_its_computation(tiny: Server) -> None:
    prompt = [(5 * i) % 250 + 3 for i in range(200)]
    before = tiny.metric("octavo_prompt_tokens_total")
    tiny.complete(prompt=prompt, n=4, max_tokens=2)
    assert tiny.metric("octavo_prompt_tokens_total") - before <= 200 + 3 * 32


@pytest.mark.parametrize("length", [31, 32, 33, 64, 65])
def test_a_repeated_prompt_is_cached_up_to_its_last_whole_block_but_never_whole(tiny: Server, length: int) -> None:
    prompt = [(11 * i + length) % 250 + 3 for i in range(length)]
    cold, warm = (tiny.complete(prompt=prompt, max_tokens=4, temperature=0, logprobs=2) for _ in range(2))
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == min(length // 32 * 32, length - 1)
    assert warm["choices"] == cold["choices"]


def test_salts_keep_prompts_apart(tiny: Server) -> None:
    prompt = [(13 * i) % 250 + 3 for i in range(64)]

    def cached(**fields: Any) -> int:
        body = tiny.complete(prompt=prompt, max_tokens=1, **fields)
        return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="a") > 0
    assert cached(cache_salt="b") == 0
    assert cached() == 0
    assert cached(cache_salt="") > 0, "an empty salt is none"


def test_the_metrics_tell_the_hits_that_replies_do(tiny: Server) -> None:
    names = ("octavo_prefix_cache_queries_total", "octavo_cached_prompt_tokens_total", "octavo_prompt_tokens_total")
    before = [tiny.metric(name) for name in names]
    prompt = [(17 * i) % 250 + 3 for i in range(100)]
    told = [
        tiny.complete(prompt=prompt, max_tokens=2)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(3)
    ]
    queries, hits, computed = (tiny.metric(name) - old for name, old in zip(names, before, strict=True))
    assert (queries, hits, computed) == (300, sum(told), 300 - sum(told))
    assert told == [0, 96, 96]
    assert tiny.metric("octavo_resumed_tokens_total") == 0


def test_the_same_message_in_another_template_is_no_hit(tiny: Server) -> None:
    text = "The tide turns at noon and the boats come in with it. " * 4

    def cached(answer: Any) -> int:
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(tiny.chat(text, max_tokens=1)) == 0
    assert cached(tiny.chat(text, max_tokens=1)) >= 32
    assert cached(tiny.complete(prompt=f"[INST] {text} [/INST]", max_tokens=1)) == 0
