"""Ids of random texts against transformers' tokenisers of the same files.

Owns the rows `smollm2-token-ids` and `gemma-3-token-ids`. Each text is encoded as a template's (control tokens count),
and as a user's (they do not); the latter must be the same ids where no control token is written, and never hold one.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from benchmarks.gemma import fetch as fetch_gemma
from benchmarks.random_texts import random_texts
from octavo.models.store import default_model
from octavo.models.tokenizer import Tokenizer, load_tokenizer

TEXTS = 10_000
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


def smollm2(short: bool) -> dict[str, Any]:
    """The default model's byte-level BPE."""
    path = default_model()
    return row(path, with_digits_alone(hf_tokenizer(path)), short)


def gemma_3(short: bool) -> dict[str, Any]:
    """Gemma 3's SentencePiece vocabulary of 262 144 tokens."""
    path = fetch_gemma()
    return row(path, hf_tokenizer(path), short)
