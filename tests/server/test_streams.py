"""Streams: the joined pieces are the body, whatever the bytes, and every stream ends as it should."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from octavo.models.tokenizer import Tokenizer
from tests.support.echo_engine import FAIL
from tests.support.server import Server

TEXTS = [
    "삼겹살과 世界, ďábel 😀",
    "ďďďďď",
    "世界世界",
    "😀👩‍🚀🙂",
    " The leading space stays",
    'quotes " and \\ and \n\t\x00 and \u2028',
    "plain",
]


def joined(events: list[dict[str, Any]], index: int = 0) -> str:
    """Text of one choice of a completion's stream."""
    return "".join(choice["text"] for event in events for choice in event["choices"] if choice["index"] == index)


def finishes(events: list[dict[str, Any]], index: int = 0) -> list[str]:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_joins_to_the_body_in_any_script(echo: Server, text: str) -> None:
    body = echo.complete(prompt=text, max_tokens=200)
    events = echo.stream("/v1/completions", {"prompt": text, "max_tokens": 200})
    assert body["choices"][0]["text"] == text
    assert joined(events) == text
    assert finishes(events) == [body["choices"][0]["finish_reason"]] == ["stop"]


def test_concurrent_streams_do_not_mix_their_characters(echo: Server) -> None:
    prompts = TEXTS * 3
    with ThreadPoolExecutor(len(prompts)) as pool:
        streams = list(
            pool.map(lambda text: echo.stream("/v1/completions", {"prompt": text, "max_tokens": 200}), prompts)
        )
    assert [joined(events) for events in streams] == prompts


def test_bytes_that_are_no_text_become_replacement_characters_alike_in_stream_and_body(
    echo: Server, tokenizer: Tokenizer
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(10):
        ids = [rng.randrange(3, 259) for _ in range(rng.randrange(1, 40))]
        body = echo.complete(prompt=ids, max_tokens=200)
        events = echo.stream("/v1/completions", {"prompt": ids, "max_tokens": 200})
        expected = b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
        assert joined(events) == body["choices"][0]["text"] == expected, f"seed {seed}"


def test_an_answer_cut_inside_a_character_ends_with_one_replacement(echo: Server) -> None:
    events = echo.stream("/v1/completions", {"prompt": "a😀", "max_tokens": 3})
    assert joined(events) == "a\ufffd"
    assert finishes(events) == ["length"]


def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason_alone(echo: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
    events = echo.stream("/v1/chat/completions", body)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1])
    assert deltas[-1] == {} and events[-1]["choices"][0]["finish_reason"] == "stop"
    assert len({event["id"] for event in events}) == 1
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == echo.chat(max_tokens=12)["choices"][0]["message"]["content"]


def test_choices_of_a_stream_come_interleaved_and_whole(echo: Server) -> None:
    events = echo.stream("/v1/completions", {"prompt": ["ab世", "cd"], "n": 2, "max_tokens": 50})
    assert [joined(events, index) for index in range(4)] == ["ab世", "ab世", "cd", "cd"]
    assert [finishes(events, index) for index in range(4)] == [["stop"]] * 4


def test_logprobs_of_a_stream_are_those_of_the_body_and_one_a_token(echo: Server) -> None:
    fields = {"prompt": "世界 is the world", "max_tokens": 40, "logprobs": 2, "stop": ["worldxxx", "wo!"]}
    body = echo.complete(**fields)
    events = echo.stream("/v1/completions", {**fields, "stream_options": {"include_usage": True}})
    chunks = [choice["logprobs"] for event in events for choice in event["choices"] if choice["logprobs"]]
    for name, values in body["choices"][0]["logprobs"].items():
        assert [value for chunk in chunks for value in chunk[name]] == values, name
        assert len(values) == body["usage"]["completion_tokens"] == events[-1]["usage"]["completion_tokens"]


def test_chat_logprobs_hold_raw_bytes_and_no_replacement_characters(echo: Server) -> None:
    messages = [{"role": "user", "content": "😀世"}]
    body = {"messages": messages, "max_tokens": 30, "logprobs": True, "top_logprobs": 2}
    answer = echo.post("/v1/chat/completions", body).json()["choices"][0]
    entries = answer["logprobs"]["content"]
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert "😀世".encode() in raw
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert not any(b"\xef\xbf\xbd" in bytes(entry["bytes"]) for entry in entries)
    events = echo.stream("/v1/chat/completions", body)
    streamed = [e for event in events for c in event["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
    assert streamed == entries


def test_a_request_that_fails_in_the_engine_ends_its_stream_with_an_error_and_harms_no_other(echo: Server) -> None:
    def failing() -> list[dict[str, Any]]:
        return echo.stream("/v1/completions", {"prompt": [FAIL, 5, 10, 11], "max_tokens": 50, "ignore_eos": True})

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(echo.stream, "/v1/completions", {"prompt": "other", "max_tokens": 50}) for _ in range(2)]
        events = pool.submit(failing).result()
        assert [joined(other.result()) for other in others] == ["other"] * 2
    assert "made to fail" in events[-1]["error"]["message"]
    assert len([event for event in events if "choices" in event]) > 0


def test_every_choice_of_a_failing_prompt_ends(echo: Server) -> None:
    body = {"prompt": [FAIL, 5, 10, 11], "n": 3, "max_tokens": 50, "ignore_eos": True}
    events = echo.stream("/v1/completions", body)
    assert len([event for event in events if "error" in event]) == 3


def test_a_request_that_fails_before_its_first_token_is_an_http_error_streamed_or_not(echo: Server) -> None:
    counted = '{finish_reason="error"}', '{finish_reason="abort"}'
    before = [echo.metric("octavo_requests_total", labels) for labels in counted]
    for stream in (True, False):
        response = echo.post("/v1/completions", {"prompt": [FAIL, 0], "max_tokens": 5, "stream": stream})
        assert response.status_code == 500
        assert "made to fail" in response.json()["error"]["message"]
    after = [echo.metric("octavo_requests_total", labels) for labels in counted]
    assert after == [before[0] + 2, before[1]]


def test_no_chunk_comes_before_the_whole_prompt_is_computed(echo: Server) -> None:
    text = "a long prompt of more than one step " * 20
    before = echo.metric("octavo_steps_total")
    events = echo.stream("/v1/completions", {"prompt": text, "max_tokens": 1})
    assert joined(events) == "a"
    assert echo.metric("octavo_steps_total") - before >= 2
