"""Templates in the manner of the common families render as `apply_chat_template` renders them, ids included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.models.tokenizer import Tokenizer, load_tokenizer
from octavo.server.templates import ChatTemplate, ChatTemplateError
from tests.support.tiny import write_hf

FOLDER = Path(__file__).parents[1] / "support" / "templates"
FAMILIES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
"""In the manner of Llama 3, Qwen 3, Mistral, Gemma, Phi, Granite and SmolLM3: their constructs, no text of theirs."""

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"b": [1, "ü<"], "a": None}}}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": " Be brief. /no_think"}, {"role": "user", "content": "  Ünïcode <b>\n"}],
    [
        {"role": "user", "content": "10 000"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n42"},
        {"role": "user", "content": "why?"},
    ],
    [
        {"role": "user", "content": "call it"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"x": 1}', "tool_call_id": "c1"},
    ],
    [{"role": "assistant", "content": "first"}, {"role": "user", "content": "x"}],
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Does <it>",
            "parameters": {"type": "object", "properties": {"b": {"type": "array"}}, "required": ["b"]},
        },
    }
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("model")).path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def hf(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Iterator[tuple[str, ChatTemplate]]:
    source = FAMILIES[request.param]
    template = ChatTemplate.of(tokenizer, source)
    yield source, template
    template.close()


@pytest.mark.parametrize("chat", range(len(CHATS)))
def test_prompts_are_those_of_apply_chat_template(
    family: tuple[str, ChatTemplate], tokenizer: Tokenizer, hf: Any, chat: int
) -> None:
    source, template = family
    messages = CHATS[chat]
    for tools in (None, TOOLS):
        for prompt in (True, False):
            for more in ({}, {"enable_thinking": False, "controls": {"length": "long"}}):
                asked = {"tools": tools, "add_generation_prompt": prompt}
                try:
                    expected = hf.apply_chat_template(messages, chat_template=source, tokenize=False, **asked, **more)
                except Exception as refusal:  # jinja2's, whatever its kind
                    with pytest.raises(ChatTemplateError) as caught:
                        template.render(messages, **asked, variables=more)
                    assert str(refusal)[:40] in str(caught.value)
                    continue
                segments = template.render(messages, **asked, variables=more)
                assert "".join(text for text, _ in segments) == expected
                ids = hf.encode(expected, add_special_tokens=False)
                assert tokenizer.encode_chat(segments) == ids


def test_arguments_as_text_give_the_prompt_of_an_object(family: tuple[str, ChatTemplate]) -> None:
    _, template = family
    as_text = {**CALL, "function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}
    chat = CHATS[3]
    try:
        expected = template.render(chat)
    except ChatTemplateError:
        return
    assert template.render([chat[0], {**chat[1], "tool_calls": [as_text]}, chat[2]]) == expected
