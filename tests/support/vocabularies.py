"""Small vocabularies trained on the spot, and GGUF files that hold a tokeniser and nothing else."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from benchmarks.random_texts import CODE, DIGITS, SPACES, WORDS

USER_DEFINED = ("<tool>", "\n\n", "ab")
CONTROL = ("<s>", "</s>", "[INST]")


@dataclass(frozen=True)
class Trained:
    """A SentencePiece model as its library and as arrays."""

    processor: Any
    proto: bytes
    tokens: list[str]
    scores: list[float]
    types: list[int]


def train_sentencepiece(seed: int, size: int = 600, **options: Any) -> Trained:
    """A BPE model with byte fallback over random texts; `options` are the trainer's."""
    rng = random.Random(seed)
    pieces = (*WORDS, *CODE, *DIGITS, *SPACES)
    texts = ("".join(rng.choices(pieces, k=20)) for _ in range(600))
    corpus = [line for text in texts for line in text.split("\n") if line.strip()]
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "vocab_size": size,
        "model_type": "bpe",
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "control_symbols": list(CONTROL[2:]),
        "user_defined_symbols": list(USER_DEFINED),
        "num_threads": 1,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=model, **(settings | options))
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.vocab_size())
    tokens = [processor.id_to_piece(i) for i in ids]
    return Trained(
        processor, model.getvalue(), tokens, [processor.get_score(i) for i in ids], [_kind(processor, i) for i in ids]
    )


def _kind(processor: Any, i: int) -> int:
    kinds = {2: processor.is_unknown, 3: processor.is_control, 5: processor.is_unused, 6: processor.is_byte}
    for kind, holds in kinds.items():
        if holds(i):
            return kind
    return 4 if processor.id_to_piece(i) in USER_DEFINED else 1


def write_vocabulary(path: Path, values: dict[str, Any], architecture: str = "llama") -> Path:
    """A GGUF file of metadata and one small tensor; keys without their prefix belong to tokenizer.ggml."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sentencepiece_gguf(path: Path, trained: Trained, architecture: str = "llama", **more: Any) -> Path:
    """A SentencePiece model as GGUF files hold it."""
    values = {
        "model": "llama",
        "tokens": trained.tokens,
        "scores": trained.scores,
        "token_type": trained.types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return write_vocabulary(path, values | more, architecture)
