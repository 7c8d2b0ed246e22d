"""The tokeniser of a model directory: tokenizer.json, with the control tokens and template beside it.

Owns nothing; read once. Off switch: none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.models.hf_config import (
    HFConfig,
    eos_ids,
    special_strings,
    tokenizer_config,
    tokenizer_facts,
)
from octavo.models.jsonfile import TOKENIZER_BYTES, read_bytes, read_json, read_template
from octavo.models.spec import ModelError
from octavo.models.tokenizer import TokenizerParts, share_plain


def read_parts(folder: Path) -> TokenizerParts:
    """Reads the directory's JSON files; the weights are not touched."""
    facts = tokenizer_facts(folder)
    path = folder / "tokenizer.json"
    try:
        backend = Backend.from_buffer(read_bytes(path, TOKENIZER_BYTES))
    except Exception as error:  # the library raises no narrower type
        raise ModelError(f"{path} is damaged: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = folder / "config.json"
    stops = eos_ids(folder, read_json(config, HFConfig).eos_token_id if config.is_file() else None, facts)
    strings = special_strings(folder)
    bos = facts.id_of(strings["bos_token"]) if "bos_token" in strings else None
    special = frozenset(token.id for token in facts.added_tokens if token.special) | set(stops)
    return TokenizerParts(
        backend=backend,
        plain=share_plain(backend, special),
        special_ids=special,
        num_tokens=facts.num_tokens,
        eos_ids=stops,
        bos_id=bos,
        add_bos=bos is not None and backend.encode("").ids[:1] == [bos],
        chat_templates={} if (template := _chat_template(folder)) is None else {"default": template},
        byte_level=_is_byte_level(facts.decoder),
        special_strings=strings,
    )


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    stages = decoder.get("decoders", [decoder]) if decoder.get("type") == "Sequence" else [decoder]
    return any(isinstance(stage, dict) and stage.get("type") == "ByteLevel" for stage in stages)


def _chat_template(folder: Path) -> str | None:
    """chat_template.jinja, or the one .jinja file, or the configuration's: a string, or the default of named ones."""
    named = folder / "chat_template.jinja"
    files = [named] if named.is_file() else sorted(folder.glob("*.jinja"))
    if len(files) == 1:
        return read_template(files[0])
    template = tokenizer_config(folder).get("chat_template")
    if isinstance(template, list):
        choices = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = choices.get("default", next(iter(choices.values()), None))
    return template if isinstance(template, str) else None
