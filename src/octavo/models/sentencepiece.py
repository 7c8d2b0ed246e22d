"""SentencePiece BPE as a tokeniser of the `tokenizers` library: what GGUF calls "llama", and tokenizer.model files.

Such a vocabulary has scores instead of merges. A pair of tokens may merge where their joined text is a token, and the
best score goes first; the list of merges that says the same is derived here. It takes seconds for 262 144 tokens, so
where it took long it is kept in the folder `tokenizers` of the cache, named by the digest of the vocabulary. Control,
unknown and byte tokens are never made by merges, so no user can spell one. Off switch: delete the folder.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from octavo.models.digest import write_atomically

log = logging.getLogger("octavo.models")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens: the same numbers in GGUF and in SentencePiece."""
SPACE = "\u2581"
_VERSION = b"1"
_SLOW = 0.2
"""Seconds from which on a derived list is worth a file."""


@dataclass(frozen=True)
class Pieces:
    """A vocabulary and how text becomes pieces."""

    tokens: Sequence[str] = field(repr=False)
    types: Any = field(repr=False)
    """One number a token."""
    scores: Any = field(repr=False, default=None)
    """One number a token, the best first to merge; None: the earlier token first."""
    unknown: str | None = None
    prefix: bool = True
    """A space is put before text, and before what follows a control token."""
    squeeze: bool = False
    """Spaces at both ends are dropped, and runs of them become one."""


def build(pieces: Pieces, cache: Path) -> Backend:
    """The tokeniser; ValueError where the vocabulary cannot be one."""
    tokens = [SPACE * len(token) if token and not token.strip(" ") else token for token in pieces.tokens]
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ValueError("the vocabulary holds a token twice")
    pairs = _merges(pieces, tokens, vocab, cache)
    merges = [(tokens[left], tokens[right]) for left, right in pairs.tolist()]
    unknown = pieces.unknown if pieces.unknown in vocab else None
    bytes_known = bool((np.asarray(pieces.types) == BYTE).any())
    backend = Backend(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=bytes_known))
    backend.normalizer = normalizers.Sequence(_normalizers(pieces))
    stages: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*stages, decoders.Strip(" ", 1, 0)] if pieces.prefix else stages)
    return backend


def _normalizers(pieces: Pieces) -> list[Any]:
    """In SentencePiece's order: spaces, the space in front, the visible space."""
    stages: list[Any] = []
    if pieces.squeeze:
        stages += [normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if pieces.prefix:
        stages.append(normalizers.Prepend(SPACE))
    return [*stages, normalizers.Replace(" ", SPACE)]


def _merges(pieces: Pieces, tokens: Sequence[str], vocab: dict[str, int], cache: Path) -> Any:
    """Pairs of ids, best first; from the cache where they are there."""
    path = cache / "tokenizers" / f"{_digest(pieces, tokens)}.merges"
    known = _load(path, len(tokens))
    if known is not None:
        return known
    started = time.monotonic()
    pairs = derive_merges(tokens, pieces.types, pieces.scores, vocab)
    if time.monotonic() - started > _SLOW:
        _store(path, pairs)
    return pairs


def derive_merges(tokens: Sequence[str], types: Any, scores: Any, vocab: dict[str, int]) -> Any:
    """Every pair of tokens whose joined text is a token, in the order in which they are to merge.

    Pairs that make the same token follow each other, the longer left part first; tokens of one score, by the lengths
    of their parts, as the field's converters do.
    """
    whole = np.isin(types, (NORMAL, USER_DEFINED)).tolist()
    mergeable = {token: i for token, i in vocab.items() if whole[i]}
    left, right, made = [], [], []
    for token, i in mergeable.items():
        for at in range(len(token) - 1, 0, -1):
            first = mergeable.get(token[:at])
            if first is not None and (second := mergeable.get(token[at:])) is not None:
                left.append(first)
                right.append(second)
                made.append(i)
    pairs = np.array([left, right], np.int32).T.reshape(-1, 2)
    if scores is None:
        return pairs
    lengths = np.array([len(token) for token in tokens])
    order = np.lexsort((-lengths[pairs[:, 1]], -lengths[pairs[:, 0]], -np.asarray(scores, np.float64)[made]))
    return pairs[order]


def _digest(pieces: Pieces, tokens: Sequence[str]) -> str:
    hasher = hashlib.sha256(_VERSION)
    text = "\0".join(tokens).encode("utf-8", "surrogatepass")
    for part in (text, np.asarray(pieces.types, "<i4").tobytes()):
        hasher.update(len(part).to_bytes(8, "little") + part)
    if pieces.scores is not None:
        hasher.update(np.asarray(pieces.scores, "<f4").tobytes())
    return hasher.hexdigest()


def _load(path: Path, count: int) -> Any:
    """The pairs of a file, or None where it is missing or not whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body, check = content[:-32], content[-32:]
    if len(body) % 8 or hashlib.sha256(body).digest() != check:
        log.warning("%s is damaged and is made anew", path)
        return None
    pairs = np.frombuffer(body, "<i4").reshape(-1, 2)
    return pairs if not pairs.size or 0 <= pairs.min() <= pairs.max() < count else None


def _store(path: Path, pairs: Any) -> None:
    """A cache that cannot be written only costs the next start the same time."""
    body = np.ascontiguousarray(pairs, "<i4").tobytes()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, body + hashlib.sha256(body).digest())
    except OSError as error:
        log.info("%s cannot be written: %s", path, error)
