"""How a chat becomes a prompt, where the request chooses: open turns, further names, truncation, parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.config import ModelConfig
from octavo.models.tokenizer import Tokenizer
from octavo.server.templates import ChatTemplate, ChatTemplateError
from tests.server.test_chats import chat, prompt_of
from tests.support.server import Server, echo_config, serving

USER = {"role": "user", "content": "a"}


def text_of(server: Server, messages: list[dict[str, Any]], **fields: Any) -> str:
    """The prompt's text, read from the echo of it."""
    fields = {"max_tokens": 200, "ignore_eos": True, "logprobs": True, "skip_special_tokens": False, **fields}
    body = chat(server, messages, **fields)
    entries = body["choices"][0]["logprobs"]["content"][: body["usage"]["prompt_tokens"]]
    return b"".join(bytes(entry["bytes"]) for entry in entries).decode()


@pytest.mark.parametrize("said", ["Sure, ", "x", "", " \n", "世界", "a<|im_end|>b"])
def test_a_last_message_that_is_continued_stays_open(echo: Server, said: str) -> None:
    messages = [USER, {"role": "assistant", "content": said}]
    text = text_of(echo, messages, continue_final_message=True)
    assert text == f"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{said}"
    assert text_of(echo, messages, continue_final_message=True, add_generation_prompt=False) == text
    raw, _ = prompt_of(echo, messages)
    assert raw.count(list(b"<|im_end|>")) == 2, "a control token's text in a message is no control token"


def test_a_users_message_may_be_continued_too(echo: Server) -> None:
    assert text_of(echo, [USER], continue_final_message=True) == "<|im_start|>user\na"


def test_no_turn_is_opened_where_none_is_wanted(echo: Server) -> None:
    closed = "<|im_start|>user\na<|im_end|>\n"
    assert text_of(echo, [USER], add_generation_prompt=False) == closed
    assert text_of(echo, [USER], add_generation_prompt=True) == closed + "<|im_start|>assistant\n"
    assert text_of(echo, [USER]) == closed + "<|im_start|>assistant\n"


def test_a_template_that_changes_the_last_text_cannot_be_continued(tokenizer: Tokenizer) -> None:
    template = ChatTemplate.of(tokenizer, "{{ messages[0].content }}")
    try:
        with pytest.raises(ChatTemplateError, match="continue_final_message"):
            template.render([USER, {"role": "assistant", "content": "b"}], continues=True)
    finally:
        template.close()


def test_further_names_reach_the_template_as_text(tiny_path: Path, tmp_path: Path) -> None:
    source = tmp_path / "kwargs.jinja"
    source.write_text("{% if thinking %}[{{ thinking }}]{% endif %}{{ messages[0].content }}{{ eos_token }}")
    what = echo_config(tiny_path)
    model = ModelConfig(path=str(tiny_path), name="echo", max_model_len=1024, chat_template=str(source))
    from dataclasses import replace

    with serving(replace(what, engine=replace(what.engine, model=model))) as server:
        assert text_of(server, [USER]).startswith("a")
        assert text_of(server, [USER], chat_template_kwargs={"thinking": "yes"}).startswith("[yes]a")
        body = chat(
            server,
            [USER],
            chat_template_kwargs={"thinking": "<|im_end|>", "eos_token": "<|im_start|>"},
            ignore_eos=True,
            logprobs=True,
            skip_special_tokens=False,
        )
        entries = body["choices"][0]["logprobs"]["content"][: body["usage"]["prompt_tokens"]]
        texts = [bytes(entry["bytes"]).decode() for entry in entries]
        assert "".join(texts).startswith("[<|im_end|>]a") and texts.count("<|im_start|>") == 0
        assert texts.count("<|im_end|>") <= 1, "the template's own alone"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("continue_final_message", {"continue_final_message": True, "add_generation_prompt": True}),
        ("continue_final_message", {"continue_final_message": "yes"}),
        ("add_generation_prompt", {"add_generation_prompt": 1}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"tools": []}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"a b": 1}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {f"x{i}": 1 for i in range(65)}}),
        ("chat_template_kwargs", {"chat_template_kwargs": [1]}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": -1}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": 1.5}),
    ],
)
def test_what_cannot_work_is_refused_by_name(echo: Server, field: str, fields: dict[str, Any]) -> None:
    response = echo.post("/v1/chat/completions", {"messages": [USER], **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)


def test_a_prompt_is_cut_only_where_that_is_asked_for(echo: Server, tokenizer: Tokenizer) -> None:
    text = "the world in the other " * 300
    ids = tokenizer.encode(text)
    refused = echo.post("/v1/completions", {"prompt": text, "max_tokens": 5})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    for prompt in (text, ids):
        body = echo.complete(prompt=prompt, max_tokens=5, truncate_prompt_tokens=20, echo=True)
        assert body["usage"]["prompt_tokens"] == 20
        assert body["choices"][0]["text"] == tokenizer.decode(ids[-20:]) + tokenizer.decode(ids[-20:-15])
    long = chat(echo, [{"role": "user", "content": text}], max_tokens=5, truncate_prompt_tokens=30)
    assert long["usage"]["prompt_tokens"] == 30
    assert echo.complete(prompt="abc", truncate_prompt_tokens=1000)["choices"][0]["text"] == "abc"


def test_an_assistants_refusal_is_text_of_its_turn(echo: Server) -> None:
    parts = [{"type": "refusal", "refusal": "No"}, {"type": "text", "text": ".", "annotations": []}]
    _, text = prompt_of(echo, [USER, {"role": "assistant", "content": parts}, USER])
    assert "<|im_start|>assistant\nNo.<|im_end|>" in text


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "type"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "type"),
        ({"type": "file", "file": {"file_id": "x"}}, "type"),
        ({"type": "refusal", "refusal": "a user refuses nothing"}, "type"),
        ({"text": "a"}, "type"),
        ({"type": "text"}, "text"),
        ({"type": "text", "text": None}, "text"),
        ({"type": "text", "text": "a", "colour": "red"}, "colour"),
    ],
)
def test_other_parts_are_refused_by_type(echo: Server, part: dict[str, Any], where: str) -> None:
    for role in ("user", "system", "tool"):
        message = {"role": role, "content": [{"type": "text", "text": "a"}, part]}
        response = echo.post("/v1/chat/completions", {"messages": [message]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == f"messages[0].content[1].{where}"
