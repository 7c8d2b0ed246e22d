"""Tokenisers both ways: tokenizer.json with its settings, and GGUF metadata.

Where the formats cannot say the same, texts that tell rules apart decide: `check` encodes them with both tokenisers,
and any difference is an error. Owns nothing; off switch: none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models

from octavo.models.pretokenizers import RULES
from octavo.models.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from octavo.models.spec import ModelError
from octavo.models.tokenizer import Tokenizer, TokenizerParts

_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

PROBES = (
    "", " ", "Hello, world!", "  two  spaces   three ", "\n\n\t\ttabs\r\n and\u00a0more \n", "don't I'LL we've THEY'RE",
    "1 12 123 1234 12345 3.14 1,000,000 ١٢٣ ² ½", "def f(x):\n    return {'a': x**2, \"b\": [1, 2]}\n",
    "café naïve cafe\u0301 Å ﬁ \u212b", "Straße ИВАН ελλ שלום مرحبا हिन्दी ไทย 한국어 日本語 中文字符", "😀👩‍👩‍👧 🇩🇪 ☃️",
    "snake_case CamelCase XMLHttpRequest a1b2 A1B2", "!!! ??? ... ;; -- --> <tag attr='x'> </s> [INST]",
    "a\u0000b\u200bc\ufeff",
    "x" * 70, "#" * 33, "_" * 20 + "=" * 20, "https://example.org/a?b=c&d=%20#e",
    "\u3000全角　空白", "(a)[b]{c}/d\\e|f~g`h",
)  # fmt: skip


def gguf_tokenizer(folder: Path, parts: TokenizerParts, vocab: int) -> dict[str, Any]:
    """The metadata of a directory's tokeniser; `vocab` rows of the embedding are all given a token."""
    described: dict[str, Any] = json.loads((folder / "tokenizer.json").read_bytes())
    model = described.get("model", {})
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        kind = str(model.get("type"))[:40]
        raise ModelError(f"{folder}: a tokeniser of type {kind} has no words in a GGUF file; supported: BPE")
    tokens, types = _tokens(described, parts, vocab)
    values: dict[str, Any] = {"tokenizer.ggml.model": "gpt2" if parts.byte_level else "llama"}
    if parts.byte_level:
        values["tokenizer.ggml.pre"] = _rule_name(folder, parts.backend)
        values["tokenizer.ggml.tokens"] = tokens
        values["tokenizer.ggml.merges"] = [" ".join(pair) for pair in _merges(model)]
    else:
        values["tokenizer.ggml.pre"] = "default"
        values["tokenizer.ggml.tokens"] = tokens
        values["tokenizer.ggml.scores"] = _scores(tokens, _merges(model))
        values["tokenizer.ggml.add_space_prefix"] = _prefixed(parts.backend)
    values["tokenizer.ggml.token_type"] = types
    values |= _ids(parts)
    values["tokenizer.ggml.add_bos_token"] = parts.add_bos
    return values | _templates(parts.chat_templates)


def _tokens(described: Mapping[str, Any], parts: TokenizerParts, vocab: int) -> tuple[list[str], Any]:
    """Text and type of every id."""
    model = described["model"]
    tokens: list[str | None] = [None] * vocab
    types = np.full(vocab, NORMAL, np.int32)
    for text, i in model["vocab"].items():
        tokens[i] = text
        if not parts.byte_level and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            types[i] = BYTE
    for added in described.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
    unknown = model.get("unk_token")
    if not parts.byte_level and unknown in model["vocab"] and types[model["vocab"][unknown]] == NORMAL:
        types[model["vocab"][unknown]] = UNKNOWN
    for i, text in enumerate(tokens):
        if text is None:
            types[i] = UNUSED
    return [f"[PAD{i}]" if text is None else text for i, text in enumerate(tokens)], types


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model.get("merges", []))
    return [(left, right) for left, right in pairs]


def _scores(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> Any:
    """Minus the rank of the first merge that makes a token; what no merge makes needs none."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    return np.array([-float(ranks.get(token, 0)) for token in tokens], np.float32)


def _prefixed(backend: Backend) -> bool:
    """Whether a space is put before text."""
    return backend.encode("a", add_special_tokens=False).tokens[:1] != ["a"]


def _rule_name(folder: Path, backend: Backend) -> str:
    """The first rule that splits and normalises all probes as the tokeniser does."""
    ignores = bool(json.loads(backend.to_str())["model"].get("ignore_merges", False))
    for name, rule in RULES.items():
        if rule.whole_words != ignores:
            continue
        other = Backend(models.BPE())
        rule.apply(other)
        if all(_words(other, text) == _words(backend, text) for text in PROBES):
            return name
    raise ModelError(f"{folder}: the pre-tokeniser of tokenizer.json is none that a GGUF file can name")


def _words(backend: Backend, text: str) -> Any:
    normal = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    return normal if backend.pre_tokenizer is None else backend.pre_tokenizer.pre_tokenize_str(normal)


def _ids(parts: TokenizerParts) -> dict[str, Any]:
    """Ids of control tokens; up to three end a text."""
    values: dict[str, Any] = {}
    for role, key in _ROLES.items():
        text = parts.special_strings.get(role)
        i = None if text is None else parts.backend.token_to_id(text)
        if i is not None and role != "eos_token":
            values[f"tokenizer.ggml.{key}_token_id"] = i
    own = parts.backend.token_to_id(parts.special_strings.get("eos_token", ""))
    ends = ([own] if own in parts.eos_ids else []) + [i for i in parts.eos_ids if i != own]
    return values | {f"tokenizer.ggml.{key}": i for key, i in zip(_EOS_KEYS, ends, strict=False)}


def _templates(templates: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    named = [name for name in templates if name != "default"]
    if "default" in templates:
        values["tokenizer.chat_template"] = templates["default"]
    if named:
        values["tokenizer.chat_templates"] = named
        values |= {f"tokenizer.chat_template.{name}": templates[name] for name in named}
    return values


def write_tokenizer(folder: Path, parts: TokenizerParts, sampling: Mapping[str, float]) -> None:
    """tokenizer.json, tokenizer_config.json, generation_config.json and the chat template."""
    described = json.loads(parts.backend.to_str())
    vocab = described["model"]["vocab"]
    described["model"]["vocab"] = {text: i for text, i in vocab.items() if i < parts.num_tokens}
    bos = parts.special_strings.get("bos_token")
    if parts.add_bos and bos is not None:
        described["post_processor"] = _bos_first(bos, parts.bos_id)
    _write(folder / "tokenizer.json", described)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": parts.add_bos,
        **parts.special_strings,
    }
    named = [{"name": name, "template": text} for name, text in parts.chat_templates.items()]
    if list(parts.chat_templates) == ["default"]:
        settings["chat_template"] = parts.chat_templates["default"]
    elif named:
        settings["chat_template"] = named
    _write(folder / "tokenizer_config.json", settings)
    generation: dict[str, Any] = {"eos_token_id": list(parts.eos_ids), **sampling}
    if sampling:
        generation["do_sample"] = True
    if parts.bos_id is not None:
        generation["bos_token_id"] = parts.bos_id
    _write(folder / "generation_config.json", generation)


def _bos_first(bos: str, bos_id: int | None) -> dict[str, Any]:
    def text(letter: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": letter, "type_id": kind}}

    token = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [token, text("A", 0)],
        "pair": [token, text("A", 0), token, text("B", 1)],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1))


def check(source: Tokenizer, made: Tokenizer, where: str) -> list[str]:
    """ModelError where a probe has other ids; sentences on what else differs."""
    texts = [*PROBES, *source.special_strings.values()]
    for text in texts:
        for special in (False, True):
            if source.encode(text, parse_special=special) != made.encode(text, parse_special=special):
                raise ModelError(
                    f"{where}: the new format has no words for its tokeniser: {text[:20]!r} gets other ids"
                )
    notes = []
    if set(source.eos_ids) != set(made.eos_ids):
        notes.append(f"ends of a text: {sorted(made.eos_ids)} instead of {sorted(source.eos_ids)}")
    if source.add_bos != made.add_bos:
        notes.append("whether plain text begins with BOS cannot be kept")
    if source.chat_template != made.chat_template:
        notes.append("the chat template is another one")
    return notes
