"""Ids of random texts against transformers' tokenisers of the same files.

Owns the rows `smollm2-token-ids` and `gemma-3-token-ids`. Each text is encoded as a template's (control tokens count),
and as a user's (they do not); the latter must be the same ids where no control token is written, and never hold one.
"""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from typing import Any

from benchmarks.gemma import fetch as fetch_gemma
from benchmarks.random_texts import random_texts
from octavo.models.gguf import read_gguf
from octavo.models.sentencepiece import SPACE
from octavo.models.store import default_model
from octavo.models.tokenizer import Tokenizer, load_tokenizer

TEXTS = 10_000
_SPACES = re.compile(f"[ {SPACE}]{{2}}")
SHORT_TEXTS = 1_500


def hf_tokenizer(path: Path) -> Any:
    """The library's tokeniser of a GGUF file, as its backend."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer


def with_digits_alone(backend: Any) -> Any:
    """SmolLM2's splitting rule, which the library's conversion drops and the published tokenizer.json has."""
    from tokenizers import pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


def differing(ours: Tokenizer, theirs: Any, seed: int, count: int) -> list[str]:
    """The texts whose ids differ, or in which a user's text became a control token."""
    control = [text for text in ours.control_texts if "unused" not in text] + list(ours.control_texts[-3:])
    wrong = []
    for text in random_texts(seed, count, control):
        expected = theirs.encode(text, add_special_tokens=False).ids
        plain = ours.encode(text)
        same = ours.encode(text, parse_special=True) == expected
        same = same and (ours.holds_special(text) or plain == expected)
        if not same or any(map(ours.is_special, plain)):
            wrong.append(text)
    return wrong


def row(path: Path, theirs: Any, short: bool) -> dict[str, Any]:
    seed, count = random.randrange(1 << 32), SHORT_TEXTS if short else TEXTS
    wrong = differing(load_tokenizer(path), theirs, seed, count)
    return {
        "bar": "ids equal",
        "figure": f"{len(wrong)} of {count} random texts differ",
        "met": not wrong,
        "details": {"seed": seed, "texts": count, "wrong": wrong[:20]},
    }


def sentencepiece_of(path: Path) -> Any:
    """SentencePiece's own encoder over Gemma's vocabulary, as a second oracle: the model file that it was made from.

    Runs of spaces are its user-defined pieces, which it takes whole and Hugging Face merges: there the two differ.
    """
    import sentencepiece

    file = read_gguf(path)
    tokens, types = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.token_type"].tolist()
    file.close()
    pieces = b"".join(
        _field(1, _piece(SPACE * len(token) if token.isspace() and " " in token else token, -float(i), types[i]))
        for i, token in enumerate(tokens)
    )
    trainer = {3: 2, 35: 1, 40: 3, 41: 2, 42: 1, 43: 0}
    names = {45: b"<unk>", 46: b"<bos>", 47: b"<eos>", 48: b"<pad>"}
    settings = b"".join(_number(key << 3) + _number(value) for key, value in trainer.items())
    settings += b"".join(_field(key, value) for key, value in names.items())
    normalizer = b"".join(_number(key << 3) + _number(value) for key, value in {3: 0, 4: 0, 5: 1}.items())
    proto = pieces + _field(2, settings) + _field(3, normalizer)
    return sentencepiece.SentencePieceProcessor(model_proto=proto)


def _piece(text: str, score: float, kind: int) -> bytes:
    kind = 2 if text == "<unk>" else kind
    return _field(1, text.encode()) + _number(2 << 3 | 5) + struct.pack("<f", score) + _number(3 << 3) + _number(kind)


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(content)) + content


def _number(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def smollm2(short: bool) -> dict[str, Any]:
    """The default model's byte-level BPE."""
    path = default_model()
    return row(path, with_digits_alone(hf_tokenizer(path)), short)


def gemma_3(short: bool) -> dict[str, Any]:
    """Gemma 3's SentencePiece vocabulary of 262 144 tokens."""
    path = fetch_gemma()
    result = row(path, hf_tokenizer(path), short)
    ours, second = load_tokenizer(path), sentencepiece_of(path)
    texts = list(random_texts(result["details"]["seed"], result["details"]["texts"]))
    plain = [text for text in texts if not _SPACES.search(text)]
    wrong = [text for text in plain if ours.encode(text) != second.encode(text)]
    result["met"] = result["met"] and not wrong
    result["figure"] += f"; of {len(plain)} without runs of spaces {len(wrong)} differ from SentencePiece itself"
    result["details"]["wrong_beside_sentencepiece"] = wrong[:20]
    return result
