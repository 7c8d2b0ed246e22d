"""Tool calls by HTTP and by the official client: every form, streamed and not, choices, ends. Cases E4 to E6."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.scripted import scripted_config, write_scripted
from tests.support.server import Server, serving

Messages = list[dict[str, Any]]

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
SAID = {
    "hermes": 'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral": 'Well. [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]',
    "llama3": 'Well.\n{"name": "f", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}',
    "json": 'Well.\n[{"name": "f", "arguments": {"a": 1}}, {"name": "now"}]',
}


@pytest.fixture(scope="module", params=SAID)
def scripted(
    request: pytest.FixtureRequest, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A server whose template shows a form, and the client."""
    path = write_scripted(tmp_path_factory.mktemp("scripted") / "model", tiny_path, request.param)
    with serving(scripted_config(path)) as server, client_of(server) as client:
        yield request.param, server, client


@pytest.fixture(scope="module")
def thinking(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that looks for thoughts; its template begins them."""
    path = write_scripted(tmp_path_factory.mktemp("thinking") / "model", tiny_path, "hermes", "<think>\n")
    with serving(scripted_config(path, reasoning_parser="think")) as server:
        yield server


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def say(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_a_whole_answer_and_the_clients_join_of_its_stream_agree(scripted: Any) -> None:
    form, _, client = scripted
    body: Any = {"model": "echo", "messages": say(SAID[form]), "tools": TOOLS, "n": 2, "logprobs": True}
    whole = client.chat.completions.create(**body)
    with client.chat.completions.stream(**body) as stream:
        stream.until_done()
        joined = stream.get_final_completion()
    for answer in (whole, joined):
        for choice in answer.choices:
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Well."
            calls = choice.message.tool_calls
            assert [(call.type, call.function.name) for call in calls] == [("function", "f"), ("function", "now")]
            assert [json.loads(call.function.arguments) for call in calls] == [{"a": 1}, {}]
            assert len({call.id for call in calls}) == 2
            assert (len(calls[0].id) == 9 and calls[0].id.isalnum()) == (form == "mistral")
    for one, other in zip(whole.choices, joined.choices, strict=True):
        assert one.logprobs == other.logprobs
        mine, its = one.message.model_dump(), other.message.model_dump()
        for call in (*mine["tool_calls"], *its["tool_calls"]):
            del call["id"]
            call["function"].pop("parsed_arguments", None)
        assert [call["function"] for call in mine["tool_calls"]] == [
            {"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in its["tool_calls"]
        ]


def test_a_streams_first_delta_of_a_call_has_id_and_name_and_the_rest_arguments(scripted: Any) -> None:
    form, server, _ = scripted
    events = server.stream("/v1/chat/completions", {"messages": say(SAID[form]), "tools": TOOLS})
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": None} and deltas[-1] == {}
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for index, name in ((0, "f"), (1, "now")):
        mine = [call for call in calls if call["index"] == index]
        assert mine[0]["type"] == "function" and mine[0]["id"] and mine[0]["function"]["name"] == name
        assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in mine[1:])


def test_an_answer_in_words_is_content_and_ends_with_stop(scripted: Any) -> None:
    _, server, _ = scripted
    for text in ("Just words.", "{}", "", "  \n"):
        body = {"messages": say(text), "tools": TOOLS}
        answer = server.post("/v1/chat/completions", body).json()["choices"][0]
        assert answer["finish_reason"] == "stop" and "tool_calls" not in answer["message"]
        assert answer["message"]["content"] == text
        deltas = [event["choices"][0]["delta"] for event in server.stream("/v1/chat/completions", body)]
        assert "".join(delta.get("content") or "" for delta in deltas) == text


def test_with_tool_choice_none_calls_are_text_and_tools_are_not_told(scripted: Any) -> None:
    form, server, _ = scripted
    plain = server.post("/v1/chat/completions", {"messages": say(SAID[form])}).json()
    none = server.post("/v1/chat/completions", {"messages": say(SAID[form]), "tools": TOOLS, "tool_choice": "none"})
    assert none.json()["choices"][0]["message"]["content"] == SAID[form].strip()
    assert none.json()["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


def test_without_parallel_calls_the_first_complete_one_ends_the_answer(scripted: Any) -> None:
    form, server, _ = scripted
    body = {"messages": say(SAID[form]), "tools": TOOLS, "parallel_tool_calls": False}
    answer = server.post("/v1/chat/completions", body).json()
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]] == ["f"]
    whole = server.post("/v1/chat/completions", {"messages": say(SAID[form]), "tools": TOOLS}).json()
    assert answer["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]


def test_every_cut_ends_with_tool_calls_only_where_all_are_complete(scripted: Any) -> None:
    form, server, _ = scripted
    ends = []
    for most in range(1, 200, 7):
        body = {"messages": say(SAID[form]), "tools": TOOLS, "max_tokens": most}
        choice = server.post("/v1/chat/completions", body).json()["choices"][0]
        calls = choice["message"].get("tool_calls", [])
        ends.append(choice["finish_reason"])
        if choice["finish_reason"] == "tool_calls":
            assert calls
            assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)
    assert {"length", "tool_calls"} == set(ends)


def test_a_clients_own_calls_can_be_sent_back_with_their_answers(scripted: Any) -> None:
    form, _, client = scripted
    first = client.chat.completions.create(model="echo", messages=say(SAID[form]), tools=TOOLS)
    message = first.choices[0].message
    answers = [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in message.tool_calls]
    messages: Any = [*say("x"), message, *answers]
    again = client.chat.completions.create(model="echo", messages=messages, tools=TOOLS)
    assert again.choices[0].message.content == "done"


def test_thoughts_that_the_template_begins_are_parted_from_the_answer(thinking: Server) -> None:
    text = f"\nhm, let me\n\n</think>\n\n{SAID['hermes']}"
    body = {"messages": say(text), "tools": TOOLS}
    thinking.post("/v1/chat/completions", body)
    whole = thinking.post("/v1/chat/completions", body).json()
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm, let me", "Well.")
    assert len(message["tool_calls"]) == 2
    events = thinking.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm, let me"
    thoughts = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < thoughts < whole["usage"]["completion_tokens"] and events[-1]["usage"] == whole["usage"]
    again = [*say("x"), message, {"role": "user", "content": "</think>ok"}]
    answer = thinking.post("/v1/chat/completions", {"messages": again}).json()["choices"][0]["message"]
    assert answer == {"role": "assistant", "content": "ok", "refusal": None}


def test_thoughts_that_never_end_are_all_of_the_answer(thinking: Server) -> None:
    answer = thinking.chat("hm hm", max_tokens=4)
    message = answer["choices"][0]["message"]
    assert message["content"] is None and message["reasoning_content"]
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
