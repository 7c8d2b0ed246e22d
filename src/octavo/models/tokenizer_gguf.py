"""Builds a tokeniser from the metadata of a GGUF file: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

The file's own words decide: token types, BOS rules, the space in front of text. What files leave out is filled as the
format's own tools do. Unknown kinds and pre-tokenisers are refused: a wrong rule gives ids that the model never saw.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from octavo.models import sentencepiece
from octavo.models.checkpoint import (
    CONTROL,
    USER_DEFINED,
    gguf_eos_ids,
    gguf_num_tokens,
    gguf_token_types,
)
from octavo.models.files import present
from octavo.models.gguf_parts import open_gguf
from octavo.models.jsonfile import read_template
from octavo.models.metadata import Metadata
from octavo.models.pretokenizers import RULES, Rule
from octavo.models.sentencepiece import UNKNOWN, UNUSED, Pieces
from octavo.models.store import cache_dir
from octavo.models.tokenizer import TokenizerParts, share_plain

log = logging.getLogger("octavo.models")

_KINDS = ("gpt2", "llama")
_MAX_NAMED_TEMPLATES = 64


def read_parts(path: Path) -> TokenizerParts:
    """Reads the headers alone."""
    file = open_gguf(path)
    try:
        return _parts(Metadata(file), path.with_suffix(".jinja"))
    finally:
        file.close()


def _parts(meta: Metadata, template: Path) -> TokenizerParts:
    """`template`: a file beside the model whose template replaces the model's own."""
    kind = meta.string("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise meta.error(
            f"tokeniser {kind!r} is not supported; supported: 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE)"
        )
    named = meta.strings("tokenizer.ggml.tokens")
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(named)]  # a vocabulary may hold no text twice
    types = np.where(np.array([not token for token in named]), UNUSED, gguf_token_types(meta))
    byte_level = kind == "gpt2"
    rule = _rule(meta) if byte_level else None
    prefix = not byte_level and meta.flag("tokenizer.ggml.add_space_prefix", not _is_gemma(meta))
    backend = _byte_level(meta, tokens, rule) if rule else _sentence_piece(meta, tokens, types, prefix)
    _add_tokens(meta, backend, tokens, types)
    eos = gguf_eos_ids(meta)
    special = frozenset(np.flatnonzero((types == CONTROL) | (types == UNKNOWN)).tolist()) | set(eos)
    bos = _token_id(meta, "bos", len(tokens))
    if meta.flag("tokenizer.ggml.add_eos_token", False):
        log.info("%s: add_eos_token is not followed: a prompt that ends with EOS has no answer", meta.file.path.name)
    return TokenizerParts(
        backend=backend,
        plain=share_plain(backend, special),
        special_ids=special,
        num_tokens=gguf_num_tokens(meta),
        eos_ids=eos,
        bos_id=bos,
        add_bos=bos is not None and meta.flag("tokenizer.ggml.add_bos_token", rule.add_bos if rule else True),
        chat_templates=_templates(meta, template),
        byte_level=byte_level,
        drops_space=prefix,
        unused_ids=frozenset(np.flatnonzero(types == UNUSED).tolist()),
        special_strings=_special_strings(meta, tokens),
    )


def _rule(meta: Metadata) -> Rule:
    name = meta.string("tokenizer.ggml.pre")
    if name is None:
        log.warning("%s names no pre-tokeniser; GPT-2's is used, which may be another's", meta.file.path.name)
        name = "default"
    if name not in RULES:
        raise meta.error(f"pre-tokeniser {name[:40]!r} is not supported; supported: {', '.join(RULES)}")
    return RULES[name]


def _byte_level(meta: Metadata, tokens: list[str], rule: Rule) -> Backend:
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise meta.error("the vocabulary holds a token twice")
    merges: list[Any] = [tuple(merge.split(" ", 1)) for merge in meta.strings("tokenizer.ggml.merges")]
    try:
        backend = Backend(models.BPE(vocab, merges, ignore_merges=rule.whole_words))
    except Exception as error:  # the library raises no narrower type
        raise meta.error(f"tokenizer.ggml.merges does not fit the vocabulary: {error}") from error
    rule.apply(backend)
    backend.decoder = decoders.ByteLevel()
    return backend


def _is_gemma(meta: Metadata) -> bool:
    return (meta.string("general.architecture") or "").startswith("gemma")


def _sentence_piece(meta: Metadata, tokens: list[str], types: Any, prefix: bool) -> Backend:
    """Gemma's scores do not follow the order of its merges; the order of its tokens does."""
    scores = None if _is_gemma(meta) else meta.values.get("tokenizer.ggml.scores")
    if not _is_gemma(meta) and not (
        isinstance(scores, np.ndarray) and len(scores) == len(tokens) and np.isfinite(scores).all()
    ):
        raise meta.error(f"tokenizer.ggml.scores must hold one finite number for each of the {len(tokens)} tokens")
    unknown = _token_id(meta, "unknown", len(tokens))
    pieces = Pieces(
        tokens=tokens,
        types=types,
        scores=scores,
        unknown=None if unknown is None else tokens[unknown],
        prefix=prefix,
        squeeze=meta.flag("tokenizer.ggml.remove_extra_whitespaces", False),
    )
    try:
        return sentencepiece.build(pieces, cache_dir())
    except Exception as error:  # the library raises no narrower type
        raise meta.error(f"tokenizer.ggml.tokens cannot be a vocabulary: {error}") from error


def _add_tokens(meta: Metadata, backend: Backend, tokens: list[str], types: Any) -> None:
    """Control tokens are found in a template's text before anything else is split; user-defined ones in all text.

    Phi-3's SentencePiece files do not say that its turn markers eat the spaces behind them; the model's own
    tokenizer.json does.
    """
    phi3 = meta.string("general.architecture") == "phi3" and meta.string("tokenizer.ggml.model") == "llama"

    def added(i: int, special: bool) -> AddedToken:
        text = tokens[i]
        eats = phi3 and text not in ("<unk>", "<s>", "<|endoftext|>")
        return AddedToken(text, normalized=False, special=special, rstrip=eats)

    known = [i for i in np.flatnonzero(types == CONTROL).tolist() if tokens[i]]
    backend.add_special_tokens([added(i, True) for i in known])
    user = [i for i in np.flatnonzero(types == USER_DEFINED).tolist() if tokens[i]]
    # One that the vocabulary spells with visible spaces is made by merges.
    backend.add_tokens([added(i, False) for i in user if backend.token_to_id(tokens[i]) == i])


def _templates(meta: Metadata, beside: Path) -> dict[str, str]:
    """The templates by name: the file's own, the named ones, and the one beside the file instead of its default."""
    found = {}
    names = meta.values.get("tokenizer.chat_templates", [])
    for name in names[:_MAX_NAMED_TEMPLATES] if isinstance(names, list) else []:
        if (text := meta.string(f"tokenizer.chat_template.{name}")) is not None:
            found[str(name)] = text
    if (own := meta.string("tokenizer.chat_template")) is not None:
        found["default"] = own
    return found | ({"default": read_template(beside)} if present(beside) else {})


def _token_id(meta: Metadata, key: str, count: int) -> int | None:
    name = f"tokenizer.ggml.{key}_token_id"
    return meta.integer(name, high=count - 1) if name in meta.values else None


def _special_strings(meta: Metadata, tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found = {name: _token_id(meta, key, len(tokens)) for name, key in names.items()}
    return {name: tokens[i] for name, i in found.items() if i is not None}
