"""Chats about tools in every family of templates: what a template cannot say is said in ordinary turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.models.tokenizer import Tokenizer, load_tokenizer
from octavo.server.templates import ChatTemplate
from octavo.server.text import ModelText
from octavo.server.tools.definitions import FunctionDefinition, ToolPlan
from octavo.server.tools.dialect import Dialect, dialect_of
from octavo.server.tools.forms import HERMES, MISTRAL
from octavo.server.tools.render import as_said
from tests.support.tiny import CHAT_TEMPLATE, write_hf

FOLDER = Path(__file__).parents[2] / "support" / "templates"
FAMILIES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))} | {"plain": CHAT_TEMPLATE}
ABILITIES = {
    #                     tools, system_tools, system, calls, several, answers
    "date_and_tools": (True, False, True, True, False, True),
    "documents": (True, False, True, False, False, True),
    "instructions": (True, False, True, False, False, False),
    "modes": (True, False, False, False, False, True),
    "one_line": (False, True, True, False, False, True),
    "plain": (False, False, True, False, False, True),
    "thinking": (True, False, True, True, True, True),
    "turns": (False, False, True, False, False, False),
}
PLAN = ToolPlan((FunctionDefinition(name="look_up", description="Looks <it> up.", parameters={"type": "object"}),))


def call(ident: str, word: str, as_text: bool = False) -> dict[str, Any]:
    arguments: Any = {"q": word}
    arguments = json.dumps(arguments) if as_text else arguments
    return {"id": ident, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


def chat(calls: int, as_text: bool = False) -> list[dict[str, Any]]:
    made = [call(f"c{number}", f"word{number}", as_text) for number in range(calls)]
    answers = [{"role": "tool", "content": f"found{number}", "tool_call_id": f"c{number}"} for number in range(calls)]
    return [
        {"role": "user", "content": "what?"},
        {"role": "assistant", "content": "", "tool_calls": made},
        *answers,
        {"role": "user", "content": "and?"},
    ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_hf(tmp_path_factory.mktemp("model")).path)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Iterator[tuple[str, ChatTemplate, Dialect]]:
    template = ChatTemplate.of(tokenizer, FAMILIES[request.param])
    yield request.param, template, dialect_of(template)
    template.close()


def said(template: ChatTemplate, dialect: Dialect, messages: list[dict[str, Any]], plan: ToolPlan = PLAN) -> str:
    turns, tools = as_said(messages, plan.described() if plan else [], dialect, dialect.form or HERMES)
    return "".join(text for text, _ in template.render(turns, tools=tools))


def test_abilities_are_found_by_trying(family: tuple[str, ChatTemplate, Dialect]) -> None:
    name, _, dialect = family
    found = (
        dialect.tools,
        dialect.system_tools,
        dialect.system,
        dialect.calls,
        dialect.several,
        dialect.answers,
    )
    assert found == ABILITIES[name]


@pytest.mark.parametrize("calls", [1, 3])
def test_tools_calls_and_answers_are_all_in_the_prompt_in_order(
    family: tuple[str, ChatTemplate, Dialect], calls: int
) -> None:
    name, template, dialect = family
    text = said(template, dialect, chat(calls))
    assert text == said(template, dialect, chat(calls, as_text=True)), "arguments as text and as an object are one"
    words = [*(f"word{number}" for number in range(calls)), *(f"found{number}" for number in range(calls))]
    places = [text.index(word) for word in words]
    if dialect.calls and not dialect.several:
        places.sort()
        assert text.index("word0") < text.index("found0")
    assert places == sorted(places) and text.count("word0") == 1
    assert "look_up" in text and text.index("look_up") < text.index("and?")
    assert "Looks <it> up." in text or name == "modes"
    assert "None" not in text and '\\"q\\"' not in text


def test_chats_without_tools_are_left_as_they_are(family: tuple[str, ChatTemplate, Dialect]) -> None:
    _, template, dialect = family
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert said(template, dialect, messages, ToolPlan()) == "".join(text for text, _ in template.render(messages))


def test_the_default_prompt_names_functions_and_form(tokenizer: Tokenizer) -> None:
    text = ModelText(tokenizer, ChatTemplate.of(tokenizer))
    try:
        for messages in (
            [{"role": "user", "content": "hi"}],
            [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}],
        ):
            prompt = text.chat_prompt(messages, plan=PLAN)
            shown = tokenizer.decode(prompt.ids, skip_special=False)
            assert shown.startswith("<|im_start|>system\n") and shown.count("<|im_start|>system") == 1
            assert '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": VALUE}}\n</tool_call>' in shown
            assert '{"name": "look_up", "description": "Looks <it> up.", "parameters": {"type": "object"}}' in shown
            assert prompt.talk is not None and prompt.talk.form == HERMES
        assert text.chat_prompt(messages).talk is None
    finally:
        text.close()


def test_ids_of_calls_are_made_short_where_the_template_wants_them_so(tokenizer: Tokenizer) -> None:
    dialect = Dialect(MISTRAL, tools=True, system=True, calls=True, several=True, answers=True)
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call("call_0123456789", "a"), call("abcdefgh1", "b")]},
        {"role": "tool", "content": "x", "tool_call_id": "call_0123456789"},
    ]
    turns, _ = as_said(messages, [], dialect, MISTRAL)
    first, second = (made["id"] for made in turns[0]["tool_calls"])
    assert len(first) == 9 and first.isalnum() and turns[1]["tool_call_id"] == first and second == "abcdefgh1"
    assert messages[1]["tool_call_id"] == "call_0123456789", "the request's own messages are left alone"
