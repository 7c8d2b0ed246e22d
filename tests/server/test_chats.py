"""Chats: the template's ids by HTTP and by Python, content in parts, empty turns, models without a template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from octavo.models.tokenizer import Tokenizer
from octavo.server.text import load_text
from tests.support.server import Server, echo_config, serving


def chat(server: Server, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 200, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def prompt_of(server: Server, messages: list[dict[str, Any]]) -> tuple[list[int], str]:
    """The prompt's ids, read from the echo of it, and its text."""
    body = chat(server, messages, ignore_eos=True, logprobs=True, skip_special_tokens=False)
    length = body["usage"]["prompt_tokens"]
    entries = body["choices"][0]["logprobs"]["content"][:length]
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    return [entry["bytes"] for entry in entries], raw.decode()


def test_the_ids_of_a_chat_are_those_of_its_template_by_http_and_by_python(
    echo: Server, tokenizer: Tokenizer, tiny_path: Path
) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi there, the world"}]
    turns = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)
    library = tokenizers.Tokenizer.from_file(str(tiny_path / "tokenizer.json"))
    expected = library.encode(turns + "<|im_start|>assistant\n").ids
    text = load_text(tokenizer)
    try:
        assert text.chat(messages) == expected
    finally:
        text.close()
    raw, _ = prompt_of(echo, messages)
    assert raw == [list(tokenizer.token_bytes(token)) for token in expected]
    assert expected[:2].count(1) == 1, "one BOS, the template's own"


def test_content_in_parts_is_joined_without_a_separator(echo: Server) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "system", "assistant", "tool"):
        whole = prompt_of(echo, [{"role": role, "content": "ab"}])
        assert prompt_of(echo, [{"role": role, "content": parts}]) == whole


@pytest.mark.parametrize(
    "assistant",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None},
    ],
    ids=repr,
)
def test_an_assistant_turn_without_text_is_empty_and_never_none(echo: Server, assistant: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "a"}, assistant, {"role": "user", "content": "b"}]
    _, text = prompt_of(echo, messages)
    assert "None" not in text and "null" not in text
    said = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' if "tool_calls" in assistant else ""
    assert f"<|im_start|>assistant\n{said}<|im_end|>" in text


def test_a_developer_turn_is_a_system_turn(echo: Server) -> None:
    _, text = prompt_of(echo, [{"role": "developer", "content": "x"}])
    assert text.startswith("<|im_start|>system\nx")


def test_a_control_tokens_text_in_a_message_stays_text(echo: Server, tokenizer: Tokenizer) -> None:
    raw, text = prompt_of(echo, [{"role": "user", "content": "a<|im_end|>b"}])
    assert "a<|im_end|>b" in text
    assert raw.count(list(b"<|im_end|>")) == 1, "the template's own alone"


def test_max_completion_tokens_is_a_ceiling_and_the_lower_of_two_counts(echo: Server) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert chat(echo, messages, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    assert chat(echo, messages, max_tokens=2, max_completion_tokens=3)["usage"]["completion_tokens"] == 2


def test_without_max_tokens_a_chat_may_fill_the_context_and_a_completion_gets_sixteen(echo: Server) -> None:
    body = echo.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "ignore_eos": True})
    assert body.json()["usage"]["total_tokens"] == 1024
    assert echo.complete(prompt="hello", ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_a_model_without_a_template_serves_completions_and_says_how_to_supply_one(
    tiny_path: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_path, bare)
    config = json.loads((bare / "tokenizer_config.json").read_text())
    template = config.pop("chat_template")
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    messages = [{"role": "user", "content": "hi"}]
    with serving(echo_config(bare)) as server:
        response = server.post("/v1/chat/completions", {"messages": messages})
        assert response.status_code == 400
        assert "chat_template.jinja" in response.json()["error"]["message"]
        assert server.complete(prompt="works")["choices"][0]["text"] == "works"
    (bare / "chat_template.jinja").write_text(template)
    with serving(echo_config(bare)) as server:
        assert chat(server, messages)["choices"][0]["finish_reason"] == "stop"


def test_a_template_that_runs_wild_is_an_error_of_its_request_alone(tiny_path: Path, tmp_path: Path) -> None:
    wild = tmp_path / "wild"
    shutil.copytree(tiny_path, wild)
    config = json.loads((wild / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (wild / "tokenizer_config.json").write_text(json.dumps(config))
    (wild / "chat_template.jinja").write_text(
        "{% if messages[0]['content'] == 'loop' %}"
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        "{% elif messages[0]['content'] == 'memory' %}{{ 'A' * 10**9 }}"
        "{% elif messages[0]['content'] == 'code' %}{{ ''.__class__.__mro__[1].__subclasses__() }}"
        "{% else %}ok{% endif %}"
    )
    with serving(echo_config(wild)) as server:
        for content in ("loop", "memory", "code"):
            response = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
            assert response.status_code == 400, content
            assert len(response.content) < 1024
        assert server.chat("fine")["choices"][0]["message"]["content"] == "ok"
