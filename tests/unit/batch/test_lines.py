"""What lines of an input mean, and what is said of those that mean nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.batch.answers import answer, line_of, refusal
from octavo.batch.lines import CHAT, COMPLETION, Call, Defaults, LineError, line_seed, read_call
from octavo.config import ServerConfig
from octavo.server.protocol import parse_chat, parse_completion

CONFIG = ServerConfig()
HI = [{"role": "user", "content": "hi"}]


def read(line: Any, **defaults: Any) -> Call:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    return read_call(raw, 7, Defaults(**defaults), CONFIG)


def fields(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.body)
    return found


@pytest.mark.parametrize(
    ("line", "url", "body"),
    [
        ({"prompt": "a"}, COMPLETION, {"prompt": "a"}),
        ({"messages": HI}, CHAT, {"messages": HI}),
        ("a", COMPLETION, {"prompt": "a"}),
        ([1, 2], COMPLETION, {"prompt": [1, 2]}),
        ({"prompt": "a", "top_p": 0.5, "id": 3}, COMPLETION, {"prompt": "a", "top_p": 0.5}),
        (
            {"custom_id": "x", "method": "POST", "url": CHAT, "body": {"messages": HI, "n": 2}},
            CHAT,
            {"messages": HI, "n": 2},
        ),
        (b'\r\n {"prompt": "\xc3\xa4"}\r\n', COMPLETION, {"prompt": "ä"}),
    ],
    ids=str,
)
def test_a_line_is_the_request_that_it_says(line: Any, url: str, body: dict[str, Any]) -> None:
    call = read(line)
    assert (call.url, fields(call)) == (url, {**body, "seed": line_seed(0, 7)})


def test_flags_fill_in_what_a_line_leaves_out_and_nothing_else() -> None:
    flags = {"max_tokens": 5, "temperature": 0.5, "seed": 9}
    assert fields(read("a", **flags)) == {
        "prompt": "a",
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": line_seed(9, 7),
    }
    own = {"messages": HI, "max_completion_tokens": 6, "temperature": 0, "seed": 1}
    assert fields(read(own, **flags)) == own
    assert fields(read({"prompt": "a", "max_tokens": None}, **flags))["max_tokens"] == 5


def test_with_chat_text_is_a_message_and_tokens_stay_tokens() -> None:
    assert fields(read("hi", chat=True))["messages"] == HI
    assert fields(read({"prompt": "hi", "id": "a"}, chat=True))["messages"] == HI
    assert read([1], chat=True).url == COMPLETION


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "not JSON"),
        (b"Once upon a time", "neither JSON text nor an object"),
        (b'"a', "not JSON"),
        (b"\xff", "neither"),
        (b'{"prompt": "\xff"}', "UTF-8"),
        (b'{"prompt": NaN}', "finite"),
        (b'{"prompt": "a", "prompt": "b"}', "twice"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'"' + b"[" * 100_000 + b'"' + b"]" * 3, "not JSON"),
        (b"[" * 10_000 + b"]" * 10_000, "nested"),
        ({}, "no prompt"),
        ({"prompt": "a", "messages": HI}, "prompt and messages|messages and prompt"),
        ({"prompt": "a", "stream": True}, "stream"),
        ({"prompt": "a", "id": 1.5}, "id must be"),
        ({"prompt": "a", "id": True}, "id must be"),
        ({"prompt": "a", "id": "x" * 513}, "id must be"),
        ({"prompt": "a", "id": "x", "custom_id": "y"}, "one of them"),
        ({"url": CHAT, "body": {}}, "custom_id"),
        ({"custom_id": "x", "url": "/v1/models", "body": {}}, "url is '/v1/models'"),
        ({"custom_id": "x", "url": CHAT}, "body"),
        ({"custom_id": "x", "url": CHAT, "body": []}, "body"),
        ({"custom_id": "x", "url": CHAT, "method": "GET", "body": {}}, "POST"),
        ({"custom_id": "x", "url": CHAT, "body": {}, "extra": 1}, "Unknown field 'extra'"),
        ({"custom_id": "x", "url": CHAT, "body": {"stream": True}}, "stream"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_line_that_asks_for_nothing_is_one_sentence(line: Any, says: str) -> None:
    with pytest.raises(LineError, match=says) as raised:
        read(line)
    assert len(raised.value.message) < 300
    result = refusal(7, raised.value)
    assert result.error and result.text.count(b"\n") == 1
    assert line_of(result.text) == (7, True)


def test_a_wrong_batch_line_keeps_its_custom_id_and_its_form() -> None:
    with pytest.raises(LineError) as raised:
        read({"custom_id": "x", "url": "/v1/foo", "body": {}})
    told = json.loads(refusal(7, raised.value).text)
    assert (told["id"], told["custom_id"], told["response"]) == ("batch_req_7", "x", None)
    assert told["error"]["code"] == "invalid_url"


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**40))
def test_every_seed_is_one_that_the_api_takes(seed: int, line: int) -> None:
    drawn = line_seed(seed, line)
    body = json.dumps({"prompt": "a", "seed": drawn}).encode()
    assert parse_completion(body).seed == drawn
    assert drawn != line_seed(seed, line + 1)
    assert parse_chat(json.dumps({"messages": HI, "seed": drawn}).encode()).seed == drawn


def chat_body(*contents: str, **message: Any) -> bytes:
    choices = [
        {
            "index": i,
            "message": {"role": "assistant", "content": content, "refusal": None, **message},
            "logprobs": None,
            "finish_reason": "stop",
        }
        for i, content in enumerate(contents)
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    return json.dumps({"id": "chatcmpl-0123", "created": 5, "choices": choices, "usage": usage}).encode()


def test_an_answer_in_our_own_form_has_nothing_that_another_run_would_not_have() -> None:
    told = json.loads(answer(read({"messages": HI, "id": "a"}), 200, chat_body("yes")).text)
    assert told == {
        "line": 7,
        "id": "a",
        "text": "yes",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    several = json.loads(answer(read({"messages": HI, "n": 2}), 200, chat_body("yes", "no")).text)
    assert [choice["text"] for choice in several["choices"]] == ["yes", "no"]
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    whole = json.loads(answer(read({"messages": HI}), 200, chat_body("", tool_calls=calls)).text)
    assert whole["message"]["tool_calls"] == calls


def test_a_batch_answer_is_the_servers_with_an_id_of_its_line() -> None:
    call = read({"custom_id": "x", "url": CHAT, "body": {"messages": HI}})
    told = json.loads(answer(call, 200, chat_body("yes")).text)
    assert (told["id"], told["custom_id"], told["error"]) == ("batch_req_7", "x", None)
    assert told["response"]["body"]["id"] == "chatcmpl-line-7"
    assert told["response"]["body"]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    refused = answer(call, 404, b'{"error": {"message": "no"}}')
    assert refused.error == "no"
    assert line_of(refused.text) == (7, True)
    assert line_of(answer(call, 200, chat_body("yes")).text) == (7, False)


@pytest.mark.parametrize("raw", [b"", b"{}", b"5", b"\xff", b'{"line": 0}', b'{"line": "1"}', b'{"id": "batch_req_"}'])
def test_what_no_run_wrote_is_seen(raw: bytes) -> None:
    assert line_of(raw) is None
