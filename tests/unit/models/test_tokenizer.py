"""Tokenisers: the ids of Hugging Face and of a slow reference, control tokens only where they are asked for."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.token_ids import SHORT_TEXTS, differing, with_digits_alone
from octavo.models.checkpoint import open_checkpoint
from octavo.models.gguf import read_gguf
from octavo.models.spec import ModelError
from octavo.models.store import default_model
from octavo.models.tokenizer import Tokenizer, byte_alphabet, load_tokenizer
from tests.support.tiny import BASE_VOCAB, MERGES, SPECIALS, Tiny, tokenizer_json, write_gguf, write_hf

CONTROL_TEXT = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_"]
PIECES = [
    *("the", " the", "The capital of France is", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "x", "é", "ď", "ß", "Ω"),
    *(
        "0",
        "7",
        "10",
        "10 000",
        "3.14",
        "½",
        "²",
        "Ⅷ",
        "٣",
        "1_000",
        "😀",
        "🙂",
        "👩\u200d💻",
        "🇨🇭",
        "世界",
        "삼겹살",
        "שלום",
    ),
    *("don't", "I'LL", "'s", "def f(x):\n    return x\n", "{}[]();", "<div>", "a_b", "https://x.y/z?q=1", "…", "—"),
    *("\u00a0", "\u200b", "\u2028", "\ufeff", "\x00", "\x7f", "e\u0301", "\U0010ffff", "\ue000", "ﬁ", "Å"),
    *CONTROL_TEXT,
]


def random_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 12)):
        if rng.random() < 0.8:
            parts.append(rng.choice(PIECES))
        else:
            point = rng.choice([0x80, 0x800, 0x10000, 0x110000])
            code = rng.randrange(point)
            parts.append(" " if 0xD800 <= code < 0xE000 else chr(code))
    return "".join(parts)


@pytest.fixture(scope="module")
def model() -> Path:
    return default_model()


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def hf(model: Path) -> Any:
    """The tokeniser that transformers makes of the same file.

    Its conversion drops the file's rule that each digit stands alone ("smollm"); the published tokenizer.json has it,
    and it changes ids where two or more spaces stand before a digit.
    """
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    with_digits_alone(found.backend_tokenizer)
    return found


def test_the_short_form_of_the_bar_is_met(tokenizer: Tokenizer, hf: Any) -> None:
    seed = random.randrange(1 << 32)
    assert not differing(tokenizer, hf.backend_tokenizer, seed, SHORT_TEXTS), f"seed {seed}"


def test_random_texts_have_the_ids_of_transformers(tokenizer: Tokenizer, hf: Any) -> None:
    """The vocabulary lacks some bytes that no common text has; they are dropped, here as there."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    known = {byte for character, byte in byte_alphabet().items() if tokenizer.token_id(character) is not None}
    for _ in range(2000):
        text = random_text(rng)
        expected = hf.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, parse_special=True) == expected, f"seed {seed}, text {text!r}"
        plain = tokenizer.encode(text)
        if not tokenizer.holds_special(text):
            assert plain == expected, f"seed {seed}, text {text!r}"
        assert not any(token < 17 for token in plain), f"seed {seed}, text {text!r}"
        kept = bytes(byte for byte in text.encode() if byte in known)
        assert b"".join(map(tokenizer.token_bytes, plain)) == kept, f"seed {seed}, text {text!r}"
        assert tokenizer.decode(plain) == kept.decode(errors="replace"), f"seed {seed}, text {text!r}"


def test_chat_ids_equal_those_of_transformers(tokenizer: Tokenizer, hf: Any) -> None:
    from octavo.server.templates import ChatTemplate

    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    template = ChatTemplate.of(tokenizer)
    for _ in range(100):
        roles = ["system", "user"] if rng.random() < 0.5 else ["user", "assistant", "user"]
        texts = (random_text(rng) for _ in iter(int, 1))
        messages = [
            {"role": role, "content": next(text for text in texts if not tokenizer.holds_special(text))}
            for role in roles
        ]
        expected = hf.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.encode_chat(template.render(messages)) == expected, f"seed {seed}, {messages!r}"
        assert expected[0] == 1 != expected[1]
    template.close()


def slow_reference(model: Path) -> Any:
    """Byte-level BPE as it is defined: split, then merge the pair that was learnt first until none is left.

    Bytes that the vocabulary lacks are dropped before their neighbours merge, as Hugging Face does.
    """
    metadata = read_gguf(model).metadata
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    characters = {byte: character for character, byte in byte_alphabet().items()}
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def encode(text: str) -> list[int]:
        found = []
        for piece in regex.split(r"(\p{N})", text):
            for word in words.findall(piece):
                parts = [characters[byte] for byte in word.encode() if characters[byte] in ids]
                while len(parts) > 1:
                    rank, at = min((ranks.get(pair, 1 << 30), i) for i, pair in enumerate(itertools.pairwise(parts)))
                    if rank == 1 << 30:
                        break
                    parts[at : at + 2] = [parts[at] + parts[at + 1]]
                found += [ids[part] for part in parts]
        return found

    return encode


def test_random_texts_have_the_ids_of_the_slow_reference(tokenizer: Tokenizer, model: Path) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    reference = slow_reference(model)
    for _ in range(500):
        text = random_text(rng)
        assert tokenizer.encode(text) == reference(text), f"seed {seed}, text {text!r}"


def test_known_ids_of_the_default_model(tokenizer: Tokenizer) -> None:
    known = {
        "😀": [10813, 242, 218],
        " 😀": [40303, 218],
        "🙂": [10813, 38887],
        "世": [7906, 240],
        "界": [178, 239, 230],
        "ď": [143, 233],
        "described": [12390, 7199],
        " described": [3873],
        " London": [4528],
        "": [],
    }
    assert {text: tokenizer.encode(text) for text in known} == known
    assert tokenizer.token_bytes(10813) == b"\xf0\x9f"
    assert (tokenizer.eos_ids, tokenizer.bos_id, tokenizer.add_bos, tokenizer.num_tokens) == ((2,), 1, False, 49152)
    assert [i for i in range(49152) if tokenizer.is_special(i)] == list(range(17))
    assert tokenizer.encode("<|im_start|>x", parse_special=True)[0] == 1
    assert tokenizer.encode("x", add_bos=True) == [1, *tokenizer.encode("x")]
    assert tokenizer.special_strings["eos_token"] == "<|im_end|>"
    assert tokenizer.decode([1, 28, 2]) == tokenizer.decode([28])
    assert tokenizer.decode([1, 28, 2], skip_special=False).startswith("<|im_start|>")


def test_ids_beyond_the_tokeniser_decode_to_nothing(tokenizer: Tokenizer) -> None:
    for token in (49152, 1 << 40, -1):
        assert tokenizer.token_bytes(token) == b"" and not tokenizer.is_special(token)
        assert tokenizer.decode([token, 28]) == tokenizer.decode([28])
        assert tokenizer.decode([token, 28], skip_special=False) == tokenizer.decode([28])


def test_both_formats_of_one_model_give_one_tokeniser(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    tiny = Tiny(vocab=BASE_VOCAB + 12)
    one = load_tokenizer(write_gguf(tmp_path / "m.gguf", tiny).path)
    other = load_tokenizer(write_hf(tmp_path / "m", tiny).path)
    for name in ("num_tokens", "eos_ids", "bos_id", "add_bos", "chat_template", "control_texts"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.num_tokens == BASE_VOCAB
    for _ in range(300):
        text = random_text(rng)
        for special in (False, True):
            ids = one.encode(text, parse_special=special)
            assert ids == other.encode(text, parse_special=special), f"seed {seed}, text {text!r}"
            for skip in (False, True):
                assert one.decode(ids, skip) == other.decode(ids, skip), f"seed {seed}, text {text!r}"
        assert one.decode(one.encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec=None), max_size=60))
def test_any_text_encodes_and_only_lone_surrogates_are_lost(tiny_tokenizer: Tokenizer, text: str) -> None:
    ids = tiny_tokenizer.encode(text)
    assert all(len(SPECIALS) <= token < BASE_VOCAB for token in ids)
    assert tiny_tokenizer.decode(ids) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-3, BASE_VOCAB + 3), max_size=40), st.booleans())
def test_any_ids_decode_as_their_bytes(tiny_tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    kept = [token for token in ids if not (skip and tiny_tokenizer.is_special(token))]
    joined = b"".join(tiny_tokenizer.token_bytes(token) for token in kept)
    assert tiny_tokenizer.decode(ids, skip) == joined.decode("utf-8", "replace")


@pytest.fixture(scope="module")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_hf(tmp_path_factory.mktemp("tiny")).path)


# --- variants ---------------------------------------------------------------------------------------


def change_tokenizer(folder: Path, **changes: Any) -> Path:
    path = write_hf(folder).path
    (path / "tokenizer.json").write_text(json.dumps({**tokenizer_json(), **changes}))
    return path


def added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": token_id, "content": content, **base, **flags}


def test_an_added_token_that_is_not_special_is_found_in_users_text_too(tmp_path: Path) -> None:
    tokens = [
        *tokenizer_json()["added_tokens"],
        added(BASE_VOCAB, "<tool>"),
        added(BASE_VOCAB + 1, "<x>", special=True),
    ]
    path = write_hf(tmp_path / "m", Tiny(vocab=BASE_VOCAB + 2)).path
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json() | {"added_tokens": tokens}))
    tokenizer = load_tokenizer(path)
    assert tokenizer.num_tokens == BASE_VOCAB + 2
    assert tokenizer.encode("a<tool>")[-1] == BASE_VOCAB
    assert BASE_VOCAB + 1 not in tokenizer.encode("<x>") and 2 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.encode("<x>", parse_special=True) == [BASE_VOCAB + 1]
    assert tokenizer.decode([BASE_VOCAB]) == "<tool>"


def test_an_added_token_without_a_row_in_the_embedding_is_ordinary_text(tmp_path: Path) -> None:
    """As of Gemma 3, whose smallest models know the token of an image and have no row for it."""
    tokens = [
        *tokenizer_json()["added_tokens"],
        added(BASE_VOCAB, "<image>"),
        added(BASE_VOCAB + 1, "<x>", special=True),
    ]
    tokenizer = load_tokenizer(change_tokenizer(tmp_path / "m", added_tokens=tokens))
    assert tokenizer.num_tokens == BASE_VOCAB
    for special in (False, True):
        assert max(tokenizer.encode("a<image><x>", parse_special=special)) < BASE_VOCAB
    assert tokenizer.decode(tokenizer.encode("a<image><x>")) == "a<image><x>"
    assert "<x>" not in tokenizer.control_texts and tokenizer.decode([BASE_VOCAB]) == ""


def test_a_control_token_that_eats_spaces_does_so_beside_guarded_text(tmp_path: Path) -> None:
    tokens = [*tokenizer_json()["added_tokens"], added(BASE_VOCAB, "<x>", special=True, rstrip=True, lstrip=True)]
    path = write_hf(tmp_path / "m", Tiny(vocab=BASE_VOCAB + 1)).path
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json() | {"added_tokens": tokens}))
    tokenizer = load_tokenizer(path)
    whole = tokenizer.encode("a  <x> \n b", parse_special=True)
    assert whole == [*tokenizer.encode("a"), BASE_VOCAB, *tokenizer.encode("b")]
    guarded = tokenizer.encode_chat([("a  <x> \n b", True), ("<|im_end|>", False)])
    assert guarded == [*whole[:-1], *tokenizer.encode("b<|im_end|>")]


def test_a_post_processor_that_adds_a_bos_is_read(tmp_path: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    tokenizer = load_tokenizer(change_tokenizer(tmp_path / "m", post_processor=template))
    assert tokenizer.add_bos
    assert 1 not in tokenizer.encode("the")


def test_ends_of_turns_that_a_gguf_does_not_name_are_known_by_their_text(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.eos_token_id": 0}).path
    assert load_tokenizer(path).eos_ids == (0, 2)
    checkpoint = open_checkpoint(path)
    assert checkpoint.eos_token_ids == (0, 2)
    checkpoint.close()


def test_a_template_beside_a_gguf_replaces_its_own(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf").path
    (tmp_path / "m.jinja").write_text("mine")
    assert load_tokenizer(path).chat_template == "mine"


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("llama-bpe", "1234567", 7),
        ("gpt-2", "1234567", 7),
        ("qwen2", "12", 2),
    ],
)
def test_other_pre_tokenisers_of_gguf_are_built(tmp_path: Path, pre: str, text: str, pieces: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": pre}).path
    tokenizer = load_tokenizer(path)
    assert len(tokenizer.encode(text)) == pieces
    assert tokenizer.decode(tokenizer.encode("the  10\n\nx's 😀")) == "the  10\n\nx's 😀"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"tokenizer.ggml.pre": "surprise"}, ["surprise", "smollm"]),
        ({"tokenizer.ggml.model": "t5"}, ["'t5'", "gpt2", "llama"]),
        ({"tokenizer.ggml.model": "llama"}, ["scores"]),
        ({"tokenizer.ggml.merges": [*MERGES, "nospace"]}, ["merges"]),
        ({"tokenizer.ggml.merges": [*MERGES, "zz yy"]}, ["merges"]),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, ["token_type"]),
        ({"tokenizer.ggml.tokens": ["a"] * BASE_VOCAB}, ["twice"]),
        ({"tokenizer.ggml.eos_token_id": BASE_VOCAB}, ["eos_token_id"]),
        ({"tokenizer.ggml.add_bos_token": "yes"}, ["add_bos_token"]),
    ],
)
def test_a_gguf_tokeniser_that_cannot_be_built_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], words: list[str]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata).path
    with pytest.raises(ModelError) as caught:
        load_tokenizer(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"vocab": {"a": -1}}}', "[" * 100_000, '{"model": {}}'])
def test_a_damaged_tokenizer_json_is_refused(tmp_path: Path, content: str) -> None:
    path = write_hf(tmp_path / "m").path
    (path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(path)
