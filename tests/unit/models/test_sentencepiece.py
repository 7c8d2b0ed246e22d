"""SentencePiece vocabularies out of GGUF: the ids of the original library, spaces, bytes, control tokens, the cache."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_texts import random_texts
from octavo.engine.detokenizer import Detokenizer
from octavo.models import sentencepiece
from octavo.models.spec import ModelError
from octavo.models.tokenizer import Tokenizer, load_tokenizer, text_pattern
from tests.support.vocabularies import CONTROL, USER_DEFINED, Trained, sentencepiece_gguf, train_sentencepiece


@pytest.fixture(scope="module")
def seed() -> int:
    return random.randrange(1 << 31)


@pytest.fixture(scope="module")
def trained(seed: int) -> Trained:
    return train_sentencepiece(seed)


@pytest.fixture(scope="module")
def tokenizer(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(sentencepiece_gguf(tmp_path_factory.mktemp("llama") / "m.gguf", trained))


@pytest.mark.parametrize(
    ("trainer", "metadata"),
    [
        ({}, {}),
        ({"add_dummy_prefix": False}, {"add_space_prefix": False}),
        ({"remove_extra_whitespaces": True}, {"remove_extra_whitespaces": True}),
        ({"split_digits": True, "allow_whitespace_only_pieces": True}, {}),
    ],
)
def test_random_texts_have_the_ids_of_the_original_library(
    tmp_path: Path, seed: int, trainer: dict[str, Any], metadata: dict[str, Any]
) -> None:
    """Behind a user-defined token the original gives no space, Hugging Face and llama.cpp do, and so do we."""
    trained = train_sentencepiece(seed, **trainer)
    tokenizer = load_tokenizer(sentencepiece_gguf(tmp_path / "m.gguf", trained, **metadata))
    for text in random_texts(seed, 1500, (*CONTROL, *USER_DEFINED)):
        if not metadata.get("add_space_prefix", True) or not any(user in text for user in USER_DEFINED):
            ids = trained.processor.encode(text)
            assert tokenizer.encode(text) == ids, f"seed {seed}, text {text!r}"
            assert not any(map(tokenizer.is_special, ids)), f"seed {seed}, text {text!r}"


def test_decoding_gives_the_text_back(tokenizer: Tokenizer, seed: int) -> None:
    for text in random_texts(seed, 1000, CONTROL):
        if any(user in text for user in USER_DEFINED):
            continue
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("\u2581", " "), f"seed {seed}, text {text!r}"


def stream(tokenizer: Tokenizer, ids: list[int], skip_special: bool = True) -> str:
    detokenizer = Detokenizer(tokenizer, skip_special)
    return "".join([*(detokenizer.push(token) for token in ids), detokenizer.finish()])


@settings(max_examples=300)
@given(data=st.data(), skip=st.booleans())
def test_a_streamed_answer_joins_its_prompt_to_the_decoded_whole(
    tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    """Whatever the tokens: bytes that end inside a character, spaces in front, control tokens, unknown ids."""
    anything = st.integers(-2, tokenizer.num_tokens + 2)
    bytes_of_text = st.text(min_size=1, max_size=3).map(tokenizer.encode)
    ids = [
        token for part in data.draw(st.lists(st.one_of(anything.map(lambda i: [i]), bytes_of_text))) for token in part
    ]
    prompt = tokenizer.encode("The capital")
    assert tokenizer.decode(prompt) + stream(tokenizer, ids, skip) == tokenizer.decode([*prompt, *ids], skip)
    assert stream(tokenizer, ids, skip) in (tokenizer.decode(ids, skip), " " + tokenizer.decode(ids, skip))


def test_control_tokens_are_found_in_templates_alone_and_text_behind_them_gets_a_space(
    tokenizer: Tokenizer, trained: Trained
) -> None:
    instruction = trained.tokens.index("[INST]")
    the = trained.processor.encode("The capital")
    assert tokenizer.encode("<s>[INST]The capital", parse_special=True) == [1, instruction, *the]
    assert tokenizer.encode("<s>[INST]") == trained.processor.encode("<s>[INST]")
    assert tokenizer.encode("The capital", add_bos=True) == [1, *the]
    assert tokenizer.encode("<s>The capital", parse_special=True, add_bos=True) == [1, *the], "one BOS, not two"
    assert (tokenizer.add_bos, tokenizer.eos_ids, tokenizer.bos_id) == (True, (2,), 1)
    assert tokenizer.decode([1, *the]) == "The capital"
    assert tokenizer.decode([1, *the], skip_special=False) == "<s> The capital"


def test_guarded_chats_have_the_ids_of_joined_ones(tokenizer: Tokenizer, seed: int) -> None:
    for text in random_texts(seed, 300):
        if any(control in text for control in CONTROL):
            continue
        segments = [("<s>[INST] ", True), (text, False), ("[INST]x</s>", True)]
        joined = tokenizer.encode("".join(part for part, _ in segments), parse_special=True)
        assert tokenizer.encode_chat(segments) == joined, f"seed {seed}, text {text!r}"
        hidden = tokenizer.encode_chat([*segments, ("</s>", False)])
        assert hidden[: len(joined)] == joined and 2 not in hidden[len(joined) :], f"seed {seed}, text {text!r}"


def test_gemma_merges_in_the_order_of_its_tokens_and_spells_spaces_out(tmp_path: Path) -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", "    ", "\n", *(f"<0x{i:02X}>" for i in range(256))]
    types = [3, 3, 3, 2, 4, 4, 4, *[6] * 256]
    pieces = ["ab", "bc", "\u2581a", "abc", "a", "b", "c", "\u2581"]
    trained = Trained(None, b"", [*tokens, *pieces], [0.0] * (len(tokens) + len(pieces)), [*types, *[1] * len(pieces)])
    path = sentencepiece_gguf(tmp_path / "m.gguf", trained, "gemma3", bos_token_id=2, eos_token_id=1)
    tokenizer = load_tokenizer(path)
    at = {piece: len(tokens) + i for i, piece in enumerate(pieces)}
    assert tokenizer.encode("abc") == [at["abc"]]
    assert tokenizer.encode(" abc") == [at["\u2581"], at["abc"]]
    assert tokenizer.encode("a  b\nc") == [at["a"], 4, at["b"], 6, at["c"]]
    assert tokenizer.encode("é") == [7 + 0xC3, 7 + 0xA9]
    assert tokenizer.decode(tokenizer.encode(" a    b é")) == " a    b é"


def test_unused_and_unknown_ids_decode_to_nothing(tmp_path: Path, trained: Trained) -> None:
    types = list(trained.types)
    unused = types.index(1)
    types[unused] = 5
    changed = Trained(trained.processor, b"", trained.tokens, trained.scores, types)
    tokenizer = load_tokenizer(sentencepiece_gguf(tmp_path / "m.gguf", changed))
    for ids in ([unused], [0], [len(types)], [-1]):
        assert tokenizer.decode(ids) == ""
    assert tokenizer.token_bytes(unused) == b"" and tokenizer.is_special(0)


def test_empty_tokens_stand_for_nothing(tmp_path: Path, trained: Trained) -> None:
    tokens = [*trained.tokens[:-2], "", ""]
    changed = Trained(trained.processor, b"", tokens, trained.scores, trained.types)
    tokenizer = load_tokenizer(sentencepiece_gguf(tmp_path / "m.gguf", changed))
    assert tokenizer.decode([598, 599]) == "" and tokenizer.encode("ab")


def test_slow_derivations_are_kept_and_damaged_ones_made_anew(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentencepiece, "_SLOW", -1.0)
    pieces = sentencepiece.Pieces(trained.tokens, np.array(trained.types), np.array(trained.scores))
    first = sentencepiece.build(pieces, tmp_path).to_str()
    (kept,) = (tmp_path / "tokenizers").iterdir()
    content = kept.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(sentencepiece, "derive_merges", None)
        assert sentencepiece.build(pieces, tmp_path).to_str() == first
    for damage in (b"", content[:-1], content[:8] + b"\xff" * 8 + content[16:]):
        kept.write_bytes(damage)
        assert sentencepiece.build(pieces, tmp_path).to_str() == first
        assert kept.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": [0.0]}, ["scores", "600"]),
        ({"scores": [float("nan")] * 600}, ["scores", "finite"]),
        ({"tokens": ["a"] * 600}, ["twice"]),
        ({"token_type": [1]}, ["token_type"]),
        ({"unknown_token_id": 600}, ["unknown_token_id"]),
        ({"model": "t5"}, ["'t5'", "'llama'"]),
    ],
)
def test_a_vocabulary_that_cannot_be_built_is_refused(
    tmp_path: Path, trained: Trained, change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        load_tokenizer(sentencepiece_gguf(tmp_path / "m.gguf", trained, **change))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_odd_pieces_are_text(tmp_path: Path, trained: Trained) -> None:
    tokens = list(trained.tokens)
    tokens[-1] = "<0xZZ>"
    changed = Trained(trained.processor, b"", tokens, trained.scores, trained.types)
    tokenizer = load_tokenizer(sentencepiece_gguf(tmp_path / "m.gguf", changed))
    assert tokenizer.decode([len(tokens) - 1]) == "<0xZZ>"


@settings(max_examples=200)
@given(st.sets(st.text("ab<>", min_size=1, max_size=5), max_size=12), st.text("ab<>", max_size=30))
def test_the_pattern_of_many_texts_finds_the_longest_first(texts: set[str], text: str) -> None:
    pattern = text_pattern(texts)
    found = [match.span() for match in pattern.finditer(text)] if pattern else []
    expected, at = [], 0
    while at < len(text):
        fits = [len(item) for item in texts if text.startswith(item, at)]
        if fits:
            expected.append((at, at + max(fits)))
        at += max(fits, default=1)
    assert found == expected


def test_texts_that_begin_one_another_without_end_are_refused() -> None:
    assert text_pattern("a" * size for size in range(1, 200))
    with pytest.raises(ModelError, match="begin one another"):
        text_pattern("a" * size for size in range(1, 2000))
