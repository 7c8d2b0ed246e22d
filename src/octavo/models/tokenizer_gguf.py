"""Builds a tokeniser from the metadata of a GGUF file: byte-level BPE ("gpt2"), as its converters wrote it.

A file names its pre-tokeniser by `tokenizer.ggml.pre`; each name known here stands for the splitting rule of the
original tokenizer.json. An unknown name is refused: a wrong rule gives ids that the model never saw.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.models.checkpoint import (
    CONTROL,
    USER_DEFINED,
    gguf_eos_ids,
    gguf_num_tokens,
    gguf_token_types,
)
from octavo.models.gguf_parts import open_gguf
from octavo.models.jsonfile import read_template
from octavo.models.metadata import Metadata
from octavo.models.tokenizer import TokenizerParts, share_plain

# The splitting rules, by the names that files use.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_PLAIN = ("default", "gpt-2")
_BY_REGEX = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "qwen2": _QWEN2}
_NFC = ("qwen2",)


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
    if kind != "gpt2":
        raise meta.error(f"tokeniser {kind!r} is not supported; supported: 'gpt2' (byte-level BPE)")
    tokens = meta.strings("tokenizer.ggml.tokens")
    types = gguf_token_types(meta)
    backend = _backend(meta, tokens)
    _add_tokens(backend, tokens, types)
    special = frozenset(np.flatnonzero(types == CONTROL).tolist())
    special |= set(gguf_eos_ids(meta))
    bos = meta.integer("tokenizer.ggml.bos_token_id", high=len(tokens) - 1) if _has(meta, "bos_token_id") else None
    return TokenizerParts(
        backend=backend,
        plain=share_plain(backend, special),
        special_ids=special,
        num_tokens=gguf_num_tokens(meta),
        eos_ids=gguf_eos_ids(meta),
        bos_id=bos,
        add_bos=bos is not None and meta.flag("tokenizer.ggml.add_bos_token", _adds_bos(meta)),
        chat_template=read_template(template) if template.is_file() else meta.string("tokenizer.chat_template"),
        byte_level=True,
        special_strings=_special_strings(meta, tokens),
    )


def _has(meta: Metadata, key: str) -> bool:
    return f"tokenizer.ggml.{key}" in meta.values


def _adds_bos(meta: Metadata) -> bool:
    """What a file means that does not say: Llama 3's tokeniser puts a BOS before text, the others do not."""
    return _BY_REGEX.get(meta.string("tokenizer.ggml.pre") or "") is _LLAMA3


def _backend(meta: Metadata, tokens: list[str]) -> Backend:
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise meta.error("the vocabulary holds a token twice")
    merges: list[Any] = [tuple(merge.split(" ", 1)) for merge in meta.strings("tokenizer.ggml.merges")]
    try:
        backend = Backend(models.BPE(vocab, merges, ignore_merges=_ignores_merges(meta)))
    except Exception as error:  # the library raises no narrower type
        raise meta.error(f"tokenizer.ggml.merges does not fit the vocabulary: {error}") from error
    name = meta.string("tokenizer.ggml.pre", "default") or "default"
    if name in _SINGLE_DIGITS:
        splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    elif name in _PLAIN:
        splits = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    elif name in _BY_REGEX:
        split = pre_tokenizers.Split(Regex(_BY_REGEX[name]), behavior="isolated")
        splits = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        known = ", ".join((*_SINGLE_DIGITS, *_PLAIN, *_BY_REGEX))
        raise meta.error(f"pre-tokeniser {name!r} is not supported; supported: {known}")
    backend.pre_tokenizer = splits[0] if len(splits) == 1 else pre_tokenizers.Sequence(splits)
    if name in _NFC:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _ignores_merges(meta: Metadata) -> bool:
    """Llama 3 takes a whole word that is a token before it looks at merges."""
    return _BY_REGEX.get(meta.string("tokenizer.ggml.pre") or "") is _LLAMA3


def _add_tokens(backend: Backend, tokens: list[str], types: Any) -> None:
    """Control tokens are found in a template's text before anything else is split; user-defined ones in all text."""
    control = [tokens[i] for i in np.flatnonzero(types == CONTROL)]
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in control if text])
    user = [tokens[i] for i in np.flatnonzero(types == USER_DEFINED)]
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in user if text])


def _special_strings(meta: Metadata, tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        name: tokens[meta.integer(f"tokenizer.ggml.{key}_token_id", high=len(tokens) - 1)]
        for name, key in names.items()
        if _has(meta, f"{key}_token_id")
    }
