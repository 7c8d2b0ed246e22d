"""Bad requests: refused before the first byte, fast and small; nothing they do reaches anybody else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.support.server import Server


def refused(server: Server, body: dict[str, Any] | bytes, path: str = "/v1/completions", status: int = 400) -> str:
    """Posts a bad body; it is refused with a small error in the API's shape, and the server goes on."""
    began = time.monotonic()
    response = server.post(path, body)
    assert time.monotonic() - began < 5.0
    assert response.status_code == status, response.text
    assert len(response.content) < 1024
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert server.client.get("/health").status_code == 200
    return str(error["param"])


@pytest.mark.parametrize(
    "prompt",
    [
        [268],
        [-1],
        [200000],
        [2147483648],
        [2**70],
        [[1], [-5]],
        [1.5],
        [True],
        [1, "a"],
        ["a", 1],
        [["a"]],
        [None],
        {},
        5,
        True,
        None,
        "",
        [""],
        [],
        [[]],
        ["a", ""],
    ],
    ids=repr,
)
def test_prompts_that_are_none_are_refused(echo: Server, prompt: Any) -> None:
    assert refused(echo, {"prompt": prompt, "max_tokens": 2}) == "prompt"
    assert echo.complete(prompt="ok", max_tokens=5)["choices"][0]["text"] == "ok"


@pytest.mark.parametrize("messages", [[], None, "hi", [5], [{}], [{"role": "user"}], [{"role": "user", "content": 5}]])
def test_messages_that_are_none_are_refused(echo: Server, messages: Any) -> None:
    assert refused(echo, {"messages": messages}, "/v1/chat/completions").startswith("messages")


@pytest.mark.parametrize("max_tokens", [0, -1, "5", 1.5, True])
def test_max_tokens_that_cannot_be_are_refused_twice_alike(echo: Server, max_tokens: Any) -> None:
    for _ in range(2):
        assert refused(echo, {"prompt": "a", "max_tokens": max_tokens}) == "max_tokens"


def test_a_huge_max_tokens_is_cut_to_the_context(echo: Server) -> None:
    body = echo.complete(prompt="abc", max_tokens=10**12)
    assert body["choices"][0]["text"] == "abc"
    assert echo.complete(prompt="abc", max_tokens=None)["choices"][0]["text"] == "abc"


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(echo: Server) -> None:
    response = echo.post("/v1/completions", {"prompt": [5] * 1024})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].count("1024") == 2
    assert refused(echo, {"prompt": "ab" * 500_000}) == "prompt"
    long_chat = {"messages": [{"role": "user", "content": "ab" * 500_000}]}
    assert refused(echo, long_chat, "/v1/chat/completions") == "messages"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 100_000}, "n"),
        ({"stop": ["x"] * 50_000}, "stop"),
        ({"logit_bias": {str(i): 1 for i in range(49_152)}}, "logit_bias"),
        ({"logit_bias": {"268": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1, "01": 1}}, "logit_bias"),
        ({"logprobs": 50_000}, "logprobs"),
        ({"prompt": ["a"] * 10_000}, "prompt"),
        ({"stop_token_ids": [268]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids"),
        ({"stop": ["x" * 1025]}, "stop"),
        ({"prompt": ["a"] * 64, "n": 3}, "n"),
        ({"prompt": ["a"] * 64, "n": 2, "max_tokens": 1000, "logprobs": 20}, "max_tokens"),
        ({"prompt": [1] * 500_000}, "prompt"),
        ({"metadata": [[]] * 70_000}, "None"),
        ({"user": json.loads("[" * 70 + "]" * 70)}, "None"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"bad_words": ["x"] * 50_000}, "bad_words"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_small_bodies_that_ask_for_huge_work_are_refused(echo: Server, fields: dict[str, Any], param: str) -> None:
    assert refused(echo, {"prompt": "a", **fields}) == param


def _nested(depth: int) -> dict[str, Any]:
    """A schema of five branches a level."""
    if not depth:
        return {"type": "string"}
    return {("anyOf", "oneOf")[depth % 2]: [_nested(depth - 1), *({"const": i} for i in range(4))]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": _nested(12)}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "(a{1,1000}){1,1000}"}}, "structured_outputs"),
        ({"guided_regex": "(?<=x)y"}, "guided_regex"),
        ({"guided_grammar": "root ::= missing"}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_would_have_to_be_compiled_is_refused_by_name(echo: Server, fields: dict[str, Any], param: str) -> None:
    """Constrained answers are not built: nothing of a schema, pattern or grammar is looked at."""
    assert refused(echo, {"prompt": "a", **fields}) == param
    chat = {"messages": [{"role": "user", "content": "a"}]}
    assert refused(echo, {**chat, **fields}, "/v1/chat/completions") == param


def test_top_logprobs_need_logprobs(echo: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    assert refused(echo, {**chat, "top_logprobs": 2}, "/v1/chat/completions") == "top_logprobs"
    assert refused(echo, {**chat, "logprobs": True, "top_logprobs": 21}, "/v1/chat/completions") == "top_logprobs"


def test_a_body_over_the_limit_is_refused(echo: Server) -> None:
    body = json.dumps({"prompt": "x" * (5 << 20)}).encode()
    response = echo.post("/v1/completions", body)
    assert response.status_code == 413 and len(response.content) < 1024

    def parts() -> Any:
        for _ in range(6):
            yield b" " * (1 << 20)

    response = echo.client.post("/v1/completions", content=parts())
    assert response.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"prompt": "a"',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "tools": ' + b'[{"a": ' * 1000 + b"1" + b"}]" * 1000 + b"}",
        b"",
        b"null",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_bodies_that_are_no_json_object_are_refused(echo: Server, body: bytes) -> None:
    refused(echo, body)


def test_messages_and_parts_are_counted(echo: Server) -> None:
    turn = {"role": "user", "content": "a"}
    assert refused(echo, {"messages": [turn] * 4097}, "/v1/chat/completions") == "messages"
    parts = [{"type": "text", "text": ""}] * 4097
    body = {"messages": [{"role": "user", "content": parts}]}
    assert refused(echo, body, "/v1/chat/completions") == "messages[0].content"


def test_thousands_of_wrong_parts_get_one_small_error(echo: Server) -> None:
    content = [{"type": "image_url", "image_url": {"url": "x" * 50}}] * 5000
    body = {"messages": [{"role": "user", "content": content}]}
    assert refused(echo, body, "/v1/chat/completions") == "messages[0].content[0].type"


def test_a_request_beside_bad_ones_is_unchanged(echo: Server) -> None:
    body = {"prompt": "steady", "max_tokens": 300, "ignore_eos": True}
    with echo.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        for _ in range(5):
            refused(echo, b'{"prompt": "a", "temperature": NaN}')
        text = response.read().decode()
    assert text.rstrip().endswith("data: [DONE]")
    pieces = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == echo.complete(**body)["choices"][0]["text"]


def test_unknown_paths_and_methods_are_told_in_the_same_shape(echo: Server) -> None:
    for response, status in (
        (echo.client.get("/v1/nothing"), 404),
        (echo.client.get("/v1/completions"), 405),
        (echo.client.get("/v1/models/none"), 404),
    ):
        assert response.status_code == status
        assert response.json()["error"]["message"]
    error = echo.client.get("/v1/models/none").json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_another_models_name_is_refused(echo: Server) -> None:
    assert refused(echo, {"prompt": "a", "model": "gpt-4"}, status=404) == "model"
    assert echo.complete(prompt="a", model="echo")["model"] == "echo"


def test_request_ids_come_back_and_bad_ones_are_replaced(echo: Server) -> None:
    for path in ("/health", "/v1/models", "/v1/nothing"):
        assert echo.client.get(path, headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for given in ("x" * 200, "a b"):
        made = echo.client.post("/v1/completions", content=b"{", headers={"x-request-id": given})
        assert made.headers["x-request-id"].startswith("req-")
