"""A model directory's config.json, generation_config.json and the facts of tokenizer.json, as sizes and ids.

Owns nothing; read once when the directory is opened. What a configuration asks for and Octavo does not do is
refused by name: a model that runs with a setting ignored gives wrong text. Off switch: none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from octavo.models.config_reader import ConfigReader
from octavo.models.files import listing, present
from octavo.models.jsonfile import TOKENIZER_BYTES, read_json
from octavo.models.registry import hf_model
from octavo.models.sentencepiece import CONTROL, UNKNOWN, USER_DEFINED
from octavo.models.sentencepiece_file import MAKE_JSON, SentencePieceModel, read_sentencepiece
from octavo.models.spec import ModelError, ModelSpec

Eos = int | list[int] | None


class HFConfig(msgspec.Struct, frozen=True):
    """The keys of config.json that are not about arithmetic."""

    eos_token_id: Eos = None


class _GenerationConfig(msgspec.Struct, frozen=True):
    eos_token_id: Eos = None


class AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct, frozen=True):
    vocab: dict[str, int] | list[Any] = {}


class TokenizerFacts(msgspec.Struct, frozen=True):
    """What tokenizer.json says besides how to encode."""

    model: _Model
    added_tokens: list[AddedToken] = []
    decoder: dict[str, Any] | None = None

    @property
    def num_tokens(self) -> int:
        """The highest id plus one."""
        return max([self.num_learned, *(token.id + 1 for token in self.added_tokens)])

    @property
    def num_learned(self) -> int:
        """The same without added tokens: text models may know some that only their multimodal kin have rows for."""
        vocab = self.model.vocab
        return 1 + max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab)

    def within(self, rows: int) -> TokenizerFacts:
        """Without the added tokens that an embedding of so many rows has none for."""
        return TokenizerFacts(self.model, [token for token in self.added_tokens if token.id < rows], self.decoder)

    def id_of(self, text: str) -> int | None:
        """The id of a token by its text."""
        for token in self.added_tokens:
            if token.content == text:
                return token.id
        vocab = self.model.vocab
        return vocab.get(text) if isinstance(vocab, dict) else None


def config_path(folder: Path) -> Path:
    """The directory's config.json; where there is none, a .gguf file in it is the better name."""
    path = folder / "config.json"
    if not present(path):
        files = listing(folder, "*.gguf")
        named = f"name the file in it: {files[0]}" if files else "name a model directory or a .gguf file"
        raise ModelError(f"{folder} holds no config.json; {named}")
    return path


def read_spec(folder: Path) -> tuple[ModelSpec, HFConfig]:
    """config.json, checked."""
    path = config_path(folder)
    config = ConfigReader(path, read_json(path, dict))
    return hf_model(config), read_json(path, HFConfig)


def tokenizer_facts(folder: Path) -> TokenizerFacts:
    """The facts of tokenizer.json, or of tokenizer.model and what tokenizer_config.json adds to it."""
    path = folder / "tokenizer.json"
    if not present(path):
        if present(folder / "tokenizer.model"):
            return _sentencepiece_facts(folder)
        config_path(folder)
        raise ModelError(
            f"{folder} holds no tokenizer.json and no tokenizer.model, without which the model cannot read or write "
            f"text; {MAKE_JSON}"
        )
    facts = read_json(path, TokenizerFacts, TOKENIZER_BYTES)
    vocab = facts.model.vocab
    ids = [token.id for token in facts.added_tokens]
    ids += [min(vocab.values(), default=0), max(vocab.values(), default=0)] if isinstance(vocab, dict) else []
    if ids and not 0 <= min(ids) <= max(ids) < 1 << 24:
        raise ModelError(f"{path} is damaged: token ids lie between {min(ids)} and {max(ids)}")
    return facts


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")


def tokenizer_files(folder: Path) -> list[Path]:
    """The files that make a text's ids."""
    return [folder / name for name in _TOKENIZER_FILES if present(folder / name)]


def sentencepiece_of(folder: Path) -> SentencePieceModel:
    """The directory's tokenizer.model."""
    return read_sentencepiece(folder / "tokenizer.model")


def _sentencepiece_facts(folder: Path) -> TokenizerFacts:
    model = sentencepiece_of(folder)
    added = {
        i: AddedToken(i, token, kind != USER_DEFINED)
        for i, (token, kind) in enumerate(zip(model.tokens, model.types, strict=True))
        if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token
    }
    more = tokenizer_config(folder).get("added_tokens_decoder")
    for key, value in more.items() if isinstance(more, dict) else ():
        text = value.get("content") if isinstance(value, dict) else None
        if not (key.isascii() and key.isdigit() and int(key) < 1 << 24 and isinstance(text, str) and text):
            raise ModelError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has a wrong entry {key[:20]!r}")
        added[int(key)] = AddedToken(int(key), text, value.get("special") is True)
    vocab = {token: i for i, token in enumerate(model.tokens)}
    return TokenizerFacts(model=_Model(vocab=vocab), added_tokens=list(added.values()))


def embedding_rows(folder: Path) -> int | None:
    """config.json's vocab_size, in its part for text where it has parts; None where it says nothing."""
    path = folder / "config.json"
    content: dict[str, Any] = read_json(path, dict) if present(path) else {}
    part = content.get("text_config")
    for place in (content, part if isinstance(part, dict) else {}):
        if type(rows := place.get("vocab_size")) is int:
            return rows
    return None


def model_type(folder: Path) -> str:
    """config.json's word for the family; empty where there is none."""
    path = folder / "config.json"
    found = read_json(path, dict).get("model_type") if present(path) else None
    return found if isinstance(found, str) else ""


def special_strings(folder: Path) -> dict[str, str]:
    """bos_token and so on of tokenizer_config.json, else of special_tokens_map.json, else tokenizer.model's own."""
    older = folder / "special_tokens_map.json"
    config: dict[str, Any] = read_json(older, dict) if present(older) else {}
    config |= {key: value for key, value in tokenizer_config(folder).items() if value is not None}
    found = {}
    if not present(folder / "tokenizer.json") and present(folder / "tokenizer.model"):
        model = sentencepiece_of(folder)
        found = {name: model.tokens[i] for name, i in model.ids.items()}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, empty where there is none."""
    path = folder / "tokenizer_config.json"
    if not present(path):
        return {}
    content: dict[str, Any] = read_json(path, dict, 1 << 24)
    return content


def eos_ids(folder: Path, config_eos: Eos, facts: TokenizerFacts) -> tuple[int, ...]:
    """Every id that ends a text: generation_config.json's, or else config.json's, and the tokeniser's own."""
    path = folder / "generation_config.json"
    wanted: Eos = None
    if present(path):
        wanted = read_json(path, _GenerationConfig).eos_token_id
    if wanted is None:
        path, wanted = folder / "config.json", config_eos
    ids = [wanted] if isinstance(wanted, int) else list(wanted or [])
    for token in ids:
        if not 0 <= token < facts.num_tokens:
            raise ModelError(f"{path}: eos_token_id {token} is no token; ids go from 0 to {facts.num_tokens - 1}")
    own = special_strings(folder).get("eos_token")
    own_id = None if own is None else facts.id_of(own)
    if own_id is not None:
        ids.append(own_id)
    return tuple(dict.fromkeys(ids))
