"""Calls that are forced: required, named and strict ones follow their schemas, whatever the model would say. E4, E5."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from tests.support.serve import Serve
from tests.support.server import Server, serving
from tests.support.tiny import Tiny, write_hf

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "go"}]
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "dark": {"type": "boolean"}},
    "required": ["colour"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "paint", "parameters": COLOUR}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
NOW = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny random model with room for tools in its prompt."""
    path = write_hf(tmp_path_factory.mktemp("models") / "tiny", Tiny(max_context=2048, tied=False)).path
    engine = EngineConfig(
        model=ModelConfig(path=str(path), name="tiny"), kv=KVConfig(size_tokens=16_384), validate_kv=True
    )
    with serving(Serve(engine, ServerConfig(port=0))) as server:
        yield server


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 400, **fields}
    response = server.post(CHAT, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def check(calls: list[dict[str, Any]]) -> None:
    """The calls are of the tools, and follow their schemas."""
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "now":
            assert arguments == {}
        else:
            assert call["function"]["name"] == "paint" and set(arguments) <= {"colour", "dark"}
            assert arguments["colour"] in ("red", "blue") and arguments.get("dark", True) in (True, False)


def test_a_named_tool_without_parameters_is_called_with_an_empty_object_streamed_and_whole(drawing: Server) -> None:
    choice = ask(drawing, tool_choice=NOW)["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert [call["function"] for call in choice["message"]["tool_calls"]] == [{"name": "now", "arguments": "{}"}]
    events = drawing.stream(CHAT, {"messages": MESSAGES, "tools": TOOLS, "tool_choice": NOW, "max_tokens": 400})
    pieces = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert [call["index"] for call in pieces] == [0] * len(pieces)
    assert [call["function"]["name"] for call in pieces if "id" in call] == ["now"]
    assert "".join(call["function"]["arguments"] for call in pieces) == "{}"
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_required_calls_follow_their_schemas_for_every_draw(drawing: Server) -> None:
    body = ask(drawing, tool_choice="required", temperature=1.5, n=8)
    names = set()
    for choice in body["choices"]:
        calls = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        assert 1 <= len(calls) <= 16
        check(calls)
        names |= {call["function"]["name"] for call in calls}
    assert names <= {"paint", "now"}


def test_one_required_call_without_parallel_ones(drawing: Server) -> None:
    for choice in ask(drawing, tool_choice="required", parallel_tool_calls=False, temperature=1.5, n=4)["choices"]:
        assert len(choice["message"]["tool_calls"]) == 1
        check(choice["message"]["tool_calls"])


def test_a_required_call_that_is_cut_at_once_is_none(drawing: Server) -> None:
    choice = ask(drawing, tool_choice="required", max_tokens=1)["choices"][0]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


def test_strict_tools_leave_words_free_and_calls_in_their_schema(drawing: Server) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    # The first character of a call's mark is pushed, so that some draws begin one.
    body = ask(drawing, tools=strict, temperature=1.5, n=16, max_tokens=120, logit_bias={"30": 12})
    for choice in body["choices"]:
        if choice["finish_reason"] == "tool_calls":
            check(choice["message"]["tool_calls"])


class Paint(pydantic.BaseModel):
    """Paints it."""

    colour: Literal["red", "blue"]


def test_the_official_client_parses_arguments_into_a_model(drawing: Server) -> None:
    with openai.OpenAI(base_url=f"{drawing.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.parse(
            model="tiny",
            messages=MESSAGES,  # type: ignore[arg-type]
            tools=[openai.pydantic_function_tool(Paint)],
            tool_choice="required",
            parallel_tool_calls=False,
        )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and isinstance(calls[0].function.parsed_arguments, Paint)


def test_a_schema_that_cannot_be_had_is_refused_before_the_stream(drawing: Server) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": bad}}]
    for stream in (False, True):
        response = drawing.post(
            CHAT, {"messages": MESSAGES, "tools": tools, "tool_choice": "required", "stream": stream}
        )
        assert response.status_code == 400 and "uniqueItems" in response.json()["error"]["message"]
    loose = [{"type": "function", "function": {"name": "f", "parameters": bad, "strict": False}}]
    response = drawing.post(CHAT, {"messages": MESSAGES, "tools": loose, "tool_choice": "required", "max_tokens": 5})
    assert response.status_code == 200, response.text
