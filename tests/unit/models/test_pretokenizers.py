"""Splitting rules by name: the words of Hugging Face's classes and tables, and nothing lost."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from benchmarks.random_texts import random_texts
from octavo.models.pretokenizers import RULES
from octavo.models.tokenizer import byte_alphabet

CHARACTERS = {byte: character for character, byte in byte_alphabet().items()}


def words(backend: Any, text: str) -> list[str]:
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def ruled(name: str) -> Backend:
    backend = Backend(models.BPE())
    RULES[name].apply(backend)
    return backend


@pytest.mark.parametrize("name", RULES)
def test_words_hold_every_byte_of_the_text(name: str) -> None:
    seed = random.randrange(1 << 31)
    backend = ruled(name)
    for text in random_texts(seed, 60):
        joined = "".join(words(backend, text))
        normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
        assert joined == "".join(CHARACTERS[byte] for byte in normal.encode()), f"seed {seed}, text {text!r}"


def test_words_are_those_of_transformers_where_it_knows_the_name() -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    seed = random.randrange(1 << 31)
    shared = RULES.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert {"llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "dbrx"} <= shared
    for name in sorted(shared):
        theirs = Backend(models.BPE())
        split = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated")
        theirs.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        ours = ruled(name)
        ours.normalizer = None
        for text in random_texts(seed, 150):
            assert words(ours, text) == words(theirs, text), f"{name}, seed {seed}, text {text!r}"


def classes() -> dict[str, Any]:
    from transformers.models.cohere.tokenization_cohere import CohereTokenizer
    from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer
    from transformers.models.gpt_neox.tokenization_gpt_neox import GPTNeoXTokenizer
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    return {
        "command-r": CohereTokenizer,
        "gpt-2": GPT2Tokenizer,
        "olmo": GPTNeoXTokenizer,
        "qwen2": Qwen2Tokenizer,
        "qwen35": Qwen3_5Tokenizer,
    }


def test_words_are_those_of_the_families_own_classes() -> None:
    seed = random.randrange(1 << 31)
    for name, kind in classes().items():
        theirs, ours = kind().backend_tokenizer, ruled(name)
        for text in random_texts(seed, 150):
            assert words(ours, text) == words(theirs, text), f"{name}, seed {seed}, text {text!r}"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama-bpe", "12345 a1's", ["123", "45", "Ġa", "1", "'s"]),
        ("qwen2", "12 don'T", ["1", "2", "Ġdon", "'T"]),
        ("smollm", "a  12", ["a", "ĠĠ", "1", "2"]),
        ("gpt-2", "a  12!?", ["a", "Ġ", "Ġ12", "!?"]),
        ("gpt-4o", "HelloWorld's", ["Hello", "World's"]),
        ("tekken", "HelloWorld's 12", ["Hello", "World", "'s", "Ġ", "1", "2"]),
        ("deepseek-v3", "abc1234世界!x", ["abc", "123", "4", "ä¸ĸçķĮ", "!x"]),
        ("deepseek-coder", "ab\n12 c", ["ab", "Ċ", "1", "2", "Ġc"]),
        ("superbpe", "a b 1234567", ["aĠbĠ", "1", "234", "567"]),
        ("minicpm5", "1234567", ["123", "456", "7"]),
        ("seed-coder", "a!!\nb", ["a", "!!", "Ċ", "b"]),
    ],
)
def test_known_splits(name: str, text: str, expected: list[str]) -> None:
    assert words(ruled(name), text) == expected
