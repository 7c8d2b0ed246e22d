"""A SentencePiece model served: four ways to the same ids with one BOS (case K1), streams that join to the body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig, KVConfig
from octavo.llm import LLM
from octavo.models.tokenizer import Tokenizer, load_tokenizer
from octavo.server.templates import ChatTemplate
from octavo.server.text import load_text
from tests.support.server import echo_config, serving
from tests.support.tiny import Tiny, write_hf
from tests.support.vocabularies import sentencepiece_gguf, train_sentencepiece

TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}{% if turn.role == 'user' %}{{ '[INST] ' + turn.content + ' [INST]' }}"
    "{% else %}{{ turn.content + eos_token }}{% endif %}{% endfor %}"
)
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "user", "content": " The capital"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "?"},
    ],
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with a SentencePiece vocabulary in tokenizer.json, as converters write it."""
    folder = tmp_path_factory.mktemp("bos")
    trained = train_sentencepiece(7)
    source = load_tokenizer(sentencepiece_gguf(folder / "vocabulary.gguf", trained))
    path = write_hf(folder / "m", Tiny(vocab=len(trained.tokens), tied=False)).path
    adds_bos = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    content = json.loads(source.to_json()) | {"post_processor": adds_bos}
    (path / "tokenizer.json").write_text(json.dumps(content))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    config["chat_template"] = TEMPLATE
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


def by_http(path: Path, tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> tuple[int, list[list[int]]]:
    """The prompt's length, and the bytes of its tokens as the echo engine repeats them."""
    fields = {"max_tokens": 200, "ignore_eos": True, "logprobs": True, "skip_special_tokens": False}
    with serving(echo_config(path)) as server:
        body = server.post("/v1/chat/completions", {"messages": messages, **fields}).json()
    length = body["usage"]["prompt_tokens"]
    return length, [entry["bytes"] for entry in body["choices"][0]["logprobs"]["content"][:length]]


@pytest.mark.parametrize("messages", CHATS)
def test_four_ways_give_the_same_ids_with_one_bos(
    path: Path, tokenizer: Tokenizer, messages: list[dict[str, Any]]
) -> None:
    from transformers import AutoTokenizer

    hf = AutoTokenizer.from_pretrained(path)
    expected = hf.apply_chat_template(messages, return_dict=False)
    assert expected[0] == 1 and expected.count(1) == 1
    assert hf.encode("hi")[0] == 1 and tokenizer.add_bos, "plain text gets a BOS"
    template = ChatTemplate.of(tokenizer)
    rendered = "".join(text for text, _ in template.render(messages))
    template.close()
    assert tokenizer.encode(rendered, parse_special=True) == expected
    assert tokenizer.encode(rendered, parse_special=True, add_bos=tokenizer.add_bos) == expected, "sent as a completion"
    side = load_text(tokenizer)
    assert side.chat(messages) == expected
    side.close()
    with LLM(path, config=EngineConfig(kv=KVConfig(size_tokens=256))) as llm:
        assert llm.chat(messages, max_tokens=1).prompt_tokens == len(expected)
    length, raw = by_http(path, tokenizer, messages)
    assert length == len(expected)
    assert raw == [list(tokenizer.token_bytes(token)) for token in expected]


@pytest.mark.parametrize("text", ["hi", "  é😀世界 \u2028x\n\n", "The <b>10</b>", "👩\u200d💻" * 3])
def test_a_stream_joins_to_the_body(path: Path, text: str) -> None:
    """The answer repeats the prompt: bytes of one character in several tokens, and the space in front kept."""
    with serving(echo_config(path)) as server:
        body = server.complete(prompt=text, max_tokens=200)
        events = server.stream("/v1/completions", {"prompt": text, "max_tokens": 200})
    streamed = "".join(choice["text"] for event in events for choice in event["choices"])
    assert streamed == body["choices"][0]["text"] == f" {text}"
