"""Reads tokenizer.model, SentencePiece's own file: a protocol buffer of pieces and of two groups of settings.

A bounded reader of the few fields that matter, so that no protobuf library is needed. Only BPE models with byte
fallback or without are read; unigram ones are refused. Owns nothing; off switch: a tokenizer.json beside it is read
instead.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from octavo.models.jsonfile import TOKENIZER_BYTES, read_bytes
from octavo.models.sentencepiece import NORMAL, UNKNOWN, Pieces
from octavo.models.spec import ModelError

MAKE_JSON = (
    'AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY), of the package "transformers", makes '
    "a tokenizer.json"
)
_MAX_PIECES = 1 << 22
_KINDS = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}


@dataclass(frozen=True)
class SentencePieceModel:
    """What a tokenizer.model says."""

    tokens: list[str] = field(repr=False)
    scores: list[float] = field(repr=False)
    types: list[int] = field(repr=False)
    ids: dict[str, int]
    """"bos_token", "eos_token", "unk_token", "pad_token" -> id, where there is one."""
    prefix: bool
    squeeze: bool

    def pieces(self, prefix: bool, by_order: bool) -> Pieces:
        """The vocabulary; `by_order`: the order of the tokens is that of the merges, not their scores."""
        unknown = next((token for token, kind in zip(self.tokens, self.types, strict=True) if kind == UNKNOWN), None)
        return Pieces(
            tokens=self.tokens,
            types=np.array(self.types, np.int32),
            scores=None if by_order else np.array(self.scores),
            unknown=unknown,
            prefix=prefix,
            squeeze=self.squeeze,
        )


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """The file's content, checked; ModelError where it is damaged or of another kind."""
    try:
        return _model(path, memoryview(read_bytes(path, TOKENIZER_BYTES)))
    except (IndexError, UnicodeDecodeError, struct.error, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} is damaged: {error}") from error


def _model(path: Path, content: memoryview) -> SentencePieceModel:
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int] = {}
    normalizer: dict[int, int] = {}
    rewrites = False
    for number, value in _fields(content):
        if number == 1 and isinstance(value, memoryview):
            text, score, kind = _piece(value)
            tokens.append(text)
            scores.append(score)
            types.append(kind)
            if len(tokens) > _MAX_PIECES:
                raise ModelError(f"{path} holds more than {_MAX_PIECES} pieces")
        elif number == 2 and isinstance(value, memoryview):
            trainer |= {key: item for key, item in _fields(value) if isinstance(item, int)}
        elif number == 3 and isinstance(value, memoryview):
            for key, item in _fields(value):
                if isinstance(item, int):
                    normalizer[key] = item
                rewrites = rewrites or (key == 2 and isinstance(item, memoryview) and len(item) > 0)
    kind = trainer.get(3, 1)
    if kind != 2:
        raise ModelError(
            f"{path} is a SentencePiece model of kind {_KINDS.get(kind, kind)}; BPE is supported, and so is every "
            f"tokenizer.json with byte-level or SentencePiece BPE ({MAKE_JSON})"
        )
    if not tokens:
        raise ModelError(f"{path} is damaged: it holds no pieces")
    if rewrites or not normalizer.get(5, 1) or trainer.get(24, 0):
        what = "replaces characters before it splits text" if rewrites else "marks spaces in an unusual way"
        raise ModelError(f"{path} {what}, which is not supported; {MAKE_JSON}")
    named = {"unk_token": _signed(trainer.get(40, 0)), "bos_token": _signed(trainer.get(41, 1))}
    named |= {"eos_token": _signed(trainer.get(42, 2)), "pad_token": _signed(trainer.get(43, -1))}
    return SentencePieceModel(
        tokens=tokens,
        scores=scores,
        types=types,
        ids={name: i for name, i in named.items() if 0 <= i < len(tokens)},
        prefix=bool(normalizer.get(3, 1)),
        squeeze=bool(normalizer.get(4, 1)),
    )


def _piece(content: memoryview) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(content):
        if number == 1 and isinstance(value, memoryview):
            text = bytes(value).decode()
        elif number == 2 and isinstance(value, memoryview):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    if not math.isfinite(score):
        raise ValueError("a score is no finite number")
    return text, score, kind


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of a message: whole numbers of variable length, and bytes for the other three kinds."""
    at = 0
    while at < len(content):
        key, at = _number(content, at)
        kind = key & 7
        if kind == 0:
            value, at = _number(content, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _number(content, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field has the unknown kind {kind}")
        if at + size > len(content):
            raise ValueError("a field ends behind the end")
        yield key >> 3, content[at : at + size]
        at += size


def _number(content: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
