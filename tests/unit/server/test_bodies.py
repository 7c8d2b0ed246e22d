"""Bodies: strict JSON, typed and bounded fields; every refusal is small and names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.body import parse_object
from octavo.server.errors import ApiError
from octavo.server.protocol import INERT_FIELDS, REFUSED_FIELDS, ChatBody, parse_chat, parse_completion

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def refusal(body: bytes | dict[str, Any], parse: Any = parse_completion) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert len(caught.value.body()) < 1024
    return caught.value


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty", "min_p", "seed", "logit_bias", "prompt"])
def test_numbers_that_are_not_finite_are_refused_by_field(field: str, number: str) -> None:
    value = {"logit_bias": f'{{"5": {number}}}', "prompt": f"[1, {number}]"}.get(field, number)
    prompt = "" if field == "prompt" else '"prompt": "a", '
    assert refusal(f'{{{prompt}"{field}": {value}}}'.encode()).param == field


@pytest.mark.parametrize("field", ["max_tokens", "n", "seed", "top_k", "logprobs", "temperature", "min_tokens"])
def test_booleans_are_not_numbers(field: str) -> None:
    assert refusal({"prompt": "a", field: True}).param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 1.1),
        ("top_p", -1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("n", 0),
        ("max_tokens", -1),
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
        ("seed", 2**63),
        ("presence_penalty", 2.5),
        ("repetition_penalty", 0),
        ("logit_bias", {"5": 101}),
        ("logit_bias", [5]),
        ("stop", 5),
        ("stop_token_ids", [-1]),
        ("stream", "yes"),
        ("stream_options", {"include_usage": 1}),
        ("logprobs", -1),
    ],
)
def test_values_out_of_bounds_are_refused_by_field(field: str, value: Any) -> None:
    error = refusal({"prompt": "a", field: value})
    assert error.status == 400 and error.param is not None and error.param.startswith(field)
    assert field in error.message


def test_unknown_fields_are_refused_by_name_at_every_depth() -> None:
    assert refusal({"prompt": "a", "temprature": 1}).param == "temprature"
    assert refusal({"prompt": "a", "stream_options": {"x": 1}}).param == "stream_options.x"
    body = {"messages": [{"role": "user", "content": "hi", "colour": "red"}]}
    assert refusal(body, parse_chat).param == "messages[0].colour"
    assert refusal({**CHAT, "chat_templates": "{{ 1 }}"}, parse_chat).param == "chat_templates"


def test_a_missing_field_is_named() -> None:
    assert refusal({}).param == "prompt"
    assert refusal({"messages": [{"content": "x"}]}, parse_chat).param == "messages[0].role"


def test_fields_that_sdks_send_without_need_are_accepted() -> None:
    inert = dict.fromkeys(INERT_FIELDS, "x")
    neutral: dict[str, Any] = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "functions": [],
    }
    parse_chat(json.dumps({**CHAT, **inert, **neutral}).encode())
    parse_completion(json.dumps({"prompt": "a", **inert, "echo": False, "best_of": 1, "suffix": ""}).encode())


def test_null_is_absent_for_every_optional_field() -> None:
    optional = {name: None for name in parse_chat(json.dumps(CHAT).encode()).__struct_fields__ if name != "messages"}
    parse_chat(json.dumps({**CHAT, **optional}).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("functions", [{}]),
        ("function_call", {"name": "f"}),
        ("audio", {}),
        ("modalities", ["audio"]),
    ],
)
def test_what_is_not_built_is_refused_by_name(field: str, value: Any) -> None:
    assert field in REFUSED_FIELDS
    assert refusal({**CHAT, field: value}, parse_chat).param == field


@pytest.mark.parametrize(("field", "value"), [("echo", 1), ("best_of", 0), ("best_of", True), ("suffix", "x")])
def test_completions_refuse_what_is_not_built(field: str, value: Any) -> None:
    assert refusal({"prompt": "a", field: value}).param == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"prompt"',
        b'{"prompt": "a"',
        b'{"prompt": "\xff"}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 20000 + b"]" * 20000 + b"}",
        b'{"x": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_bodies_that_are_no_json_object_are_refused(body: bytes) -> None:
    assert refusal(body).status == 400


def test_pairs_of_surrogate_escapes_are_a_character() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_errors_stay_small_whatever_the_input() -> None:
    refusal({"prompt": "a", "x" * 100_000: 1})
    refusal({"prompt": "a", "model": "m" * 100_000})
    refusal({"messages": [{"role": "r" * 700, "content": "x"}] * 4096}, parse_chat)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(ChatBody.__struct_fields__)), JSON, max_size=5))
def test_any_values_are_parsed_or_refused_with_a_small_error(fields: dict[str, Any]) -> None:
    for parse in (parse_chat, parse_completion):
        try:
            parse(json.dumps({**fields}).encode())
        except ApiError as error:
            assert 400 <= error.status < 500
            assert len(error.body()) < 1024
