"""The tokeniser of a model directory: tokenizer.json, or tokenizer.model where there is none.

Control tokens, BOS rules and templates stand beside it, in tokenizer_config.json and files of their own. A way of
decoding that cannot be streamed token by token is refused. Randomness that a file asks for while a model is trained
(the dropout of BPE's merges, Unigram's sampling) is set off: a text always has the same ids. Owns nothing; read once.
Off switch: none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from octavo.models import sentencepiece
from octavo.models.files import present
from octavo.models.hf_config import (
    HFConfig,
    TokenizerFacts,
    embedding_rows,
    eos_ids,
    model_type,
    sentencepiece_of,
    special_strings,
    tokenizer_config,
    tokenizer_facts,
)
from octavo.models.hf_templates import hf_templates
from octavo.models.jsonfile import TOKENIZER_BYTES, read_bytes, read_json
from octavo.models.sentencepiece import SPACE
from octavo.models.spec import ModelError
from octavo.models.store import cache_dir
from octavo.models.tokenizer import TokenizerParts, share_plain

_RANDOM = ("dropout", "alpha", "nbest_size")
"""Attributes of the vocabularies that make ids random."""


def read_parts(folder: Path) -> TokenizerParts:
    """Reads the directory's small files; the weights are not touched."""
    all_facts = tokenizer_facts(folder)
    settings = tokenizer_config(folder)
    path = folder / "tokenizer.json"
    rows = embedding_rows(folder)
    facts = all_facts if rows is None else all_facts.within(rows)
    backend = _json_backend(path, rows) if present(path) else _sentencepiece_backend(folder, facts, settings)
    byte_level, drops_space = _decoding(path, json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
    config = folder / "config.json"
    stops = eos_ids(folder, read_json(config, HFConfig).eos_token_id if present(config) else None, all_facts)
    strings = special_strings(folder)
    bos = facts.id_of(strings["bos_token"]) if "bos_token" in strings else None
    special = frozenset(token.id for token in facts.added_tokens if token.special) | set(stops)
    plain = share_plain(backend, special)
    legacy = present(path) or settings.get("legacy", True) is not False
    return TokenizerParts(
        backend=backend,
        plain=plain,
        inner=_inner(plain) if legacy else _without_prefix(plain),
        special_ids=special,
        num_tokens=facts.num_tokens,
        eos_ids=stops,
        bos_id=bos,
        add_bos=bos is not None and _adds_bos(path, backend, bos, settings),
        chat_templates=hf_templates(folder, settings),
        byte_level=byte_level,
        drops_space=drops_space,
        special_strings=strings,
    )


def _json_backend(path: Path, rows: int | None) -> Backend:
    """An added token that the embedding has no row for (an image's, say) is left out: its text is ordinary text."""
    try:
        backend = Backend.from_buffer(read_bytes(path, TOKENIZER_BYTES))
        if rows is not None and max(backend.get_added_tokens_decoder(), default=-1) >= rows:
            content = json.loads(backend.to_str())
            content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < rows]
            backend = Backend.from_str(json.dumps(content))
    except Exception as error:  # the library raises no narrower type
        raise ModelError(f"{path} is damaged: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    for setting in _RANDOM:
        if getattr(backend.model, setting, None) is not None:
            setattr(backend.model, setting, None)
    return backend


def _sentencepiece_backend(folder: Path, facts: TokenizerFacts, settings: dict[str, Any]) -> Backend:
    """tokenizer.model with the added tokens of tokenizer_config.json."""
    model = sentencepiece_of(folder)
    prefix = settings.get("add_prefix_space")
    pieces = model.pieces(model.prefix if prefix is None else bool(prefix), model_type(folder).startswith("gemma"))
    try:
        backend = sentencepiece.build(pieces, cache_dir())
    except Exception as error:  # the library raises no narrower type
        raise ModelError(f"{folder / 'tokenizer.model'} cannot be a vocabulary: {error}") from error
    flags = settings.get("added_tokens_decoder")
    for token in sorted(facts.added_tokens, key=lambda token: token.id):
        given = flags.get(str(token.id)) if isinstance(flags, dict) else None
        given = given if isinstance(given, dict) else {}
        sides = {side: given.get(side) is True for side in ("lstrip", "rstrip", "single_word")}
        added = AddedToken(token.content, normalized=False, special=token.special, **sides)
        (backend.add_special_tokens if token.special else backend.add_tokens)([added])
        if backend.token_to_id(token.content) != token.id:
            raise ModelError(
                f"{folder}: the added token {token.content[:40]!r} has the id {token.id} there and would have "
                f"{backend.token_to_id(token.content)} here; ids must follow each other"
            )
    return backend


def _adds_bos(path: Path, backend: Backend, bos: int, settings: dict[str, Any]) -> bool:
    """tokenizer.json's post-processor decides, as in transformers; beside tokenizer.model the configuration does."""
    if present(path):
        return backend.encode("").ids[:1] == [bos]
    return settings.get("add_bos_token") is not False


# --- decoding ---------------------------------------------------------------------------------------


def _decoding(path: Path, decoder: dict[str, Any] | None) -> tuple[bool, bool]:
    """Whether tokens are in the byte alphabet, and whether a space in front is dropped."""
    stages = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [stage.get("type") for stage in stages]
    if kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return True, False
    if kinds and all(_is_sentencepiece(stage) for stage in stages):
        drops = any(
            stage["type"] == "Strip" or (stage["type"] == "Metaspace" and stage.get("prepend_scheme") != "never")
            for stage in stages
        )
        return False, drops
    named = ", ".join(map(str, kinds)) or "none"
    raise ModelError(
        f"{path}: a decoder of the kind {named[:80]} is not supported; supported: ByteLevel, SentencePiece's"
    )


def _is_sentencepiece(stage: dict[str, Any]) -> bool:
    kind = stage.get("type")
    if kind == "Replace":
        return stage.get("pattern") == {"String": SPACE} and stage.get("content") == " "
    if kind == "Strip":
        return (stage.get("content"), stage.get("start"), stage.get("stop")) == (" ", 1, 0)
    return kind in ("ByteFallback", "Fuse") or (kind == "Metaspace" and stage.get("replacement") == SPACE)


# --- the space in front -------------------------------------------------------------------------------


def _inner(plain: Backend) -> Backend | None:
    """The encoder for text behind a control token, where the splitting rule gives a space to the first text alone."""
    if plain.pre_tokenizer is None:
        return None
    probe = Backend(models.BPE())
    probe.pre_tokenizer = plain.pre_tokenizer
    content = json.loads(probe.to_str())
    rule = content["pre_tokenizer"]
    found = False
    for stage in rule.get("pretokenizers", [rule]):
        if stage.get("type") == "Metaspace" and stage.get("prepend_scheme") == "first":
            stage["prepend_scheme"], found = "never", True
    if not found:
        return None
    inner = share_plain(plain, frozenset())
    inner.pre_tokenizer = Backend.from_str(json.dumps(content)).pre_tokenizer
    return inner


def _without_prefix(plain: Backend) -> Backend | None:
    """The same for a normaliser of ours that puts the space in front."""
    probe = Backend(models.BPE())
    probe.normalizer = plain.normalizer
    content = json.loads(probe.to_str())
    stages = content["normalizer"]["normalizers"]
    content["normalizer"]["normalizers"] = [stage for stage in stages if stage["type"] != "Prepend"]
    inner = share_plain(plain, frozenset())
    inner.normalizer = Backend.from_str(json.dumps(content)).normalizer
    return inner
