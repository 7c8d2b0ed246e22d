"""What a request says of tools: every wrong form is refused by field, and the choice is what the fields come to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.config import ServerConfig
from octavo.server.errors import ApiError
from octavo.server.protocol import parse_chat
from octavo.server.tools.definitions import NO_TOOLS, ToolPlan, plan

F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
G = {"type": "function", "function": {"name": "g", "description": "G.", "strict": True}}


def planned(config: ServerConfig | None = None, **fields: Any) -> ToolPlan:
    body = parse_chat(json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode())
    return plan(body.tools, body.tool_choice, body.parallel_tool_calls, config or ServerConfig())


def refusal(config: ServerConfig | None = None, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        planned(config, **fields)
    assert caught.value.status == 400 and len(caught.value.message) < 300
    return caught.value


def test_the_choice_is_what_the_fields_come_to() -> None:
    assert planned() is NO_TOOLS
    for nothing in ({"tools": []}, {"tools": None, "tool_choice": "auto"}, {"tools": [F], "tool_choice": "none"}):
        assert not planned(**nothing)
    auto = planned(tools=[F, G])
    assert auto.names == ("f", "g") and not auto.required and auto.parallel
    assert planned(tools=[F, G], tool_choice="auto", parallel_tool_calls=False) == ToolPlan(auto.tools, parallel=False)
    assert planned(tools=[F, G], tool_choice="required") == ToolPlan(auto.tools, required=True)
    named = planned(tools=[F, G], tool_choice={"type": "function", "function": {"name": "g"}})
    assert named.names == ("g",) and named.required and named.named and not named.parallel


def test_templates_see_the_definitions_without_strict() -> None:
    assert planned(tools=[F, G]).described() == [
        F,
        {
            "type": "function",
            "function": {"name": "g", "description": "G.", "parameters": {"type": "object", "properties": {}}},
        },
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a" * 65}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "a", "colour": 1}}]}, "tools[0].function.colour"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tools": [F, F]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [F], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [F], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"functions": [], "function_call": {"name": "f"}}, "function_call"),
    ],
    ids=repr,
)
def test_wrong_forms_are_refused_by_field(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_the_older_form_is_refused_with_the_field_that_would_work() -> None:
    assert "tools would work" in refusal(functions=[{"name": "f"}]).message


def test_tools_are_bounded_and_can_be_switched_off() -> None:
    many = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(129)]
    assert "128" in refusal(tools=many).message
    assert planned(tools=many[:128])
    assert "--tool-parser" in refusal(ServerConfig(tool_parser="none"), tools=[F]).message
    assert not planned(ServerConfig(tool_parser="none"), tools=[F], tool_choice="none")


@pytest.mark.parametrize(
    "call",
    [
        {"function": {"name": "f"}},
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0},
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
    ],
)
def test_calls_in_messages_are_typed(call: dict[str, Any]) -> None:
    planned(messages=[{"role": "assistant", "tool_calls": [call], "reasoning_content": "hm"}])
    with pytest.raises(ApiError) as caught:
        planned(messages=[{"role": "assistant", "tool_calls": [{**call, "function": {"arguments": 5}}]}])
    assert caught.value.param is not None and caught.value.param.startswith("messages[0].tool_calls[0].function")
