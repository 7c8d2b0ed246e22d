"""A model directory's config.json, generation_config.json and the facts of tokenizer.json, as sizes and ids.

Owns nothing; read once when the directory is opened. What a configuration asks for and Octavo does not do is
refused by name: a model that runs with a setting ignored gives wrong text. Off switch: none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from octavo.models.jsonfile import TOKENIZER_BYTES, read_json
from octavo.models.spec import ModelError, ModelSpec

ARCHITECTURES = {"LlamaForCausalLM": "llama"}

Eos = int | list[int] | None


class HFConfig(msgspec.Struct, frozen=True):
    """The keys of config.json that a Llama's forward pass depends on, with the defaults of its format."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    architectures: list[str] | None = None
    model_type: str | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    quantization_config: dict[str, Any] | None = None
    eos_token_id: Eos = None


class _GenerationConfig(msgspec.Struct, frozen=True):
    eos_token_id: Eos = None


class _Architecture(msgspec.Struct, frozen=True):
    """Read first, so that a model of another kind is refused by its name and not by a key it lacks."""

    architectures: list[str] | None = None
    model_type: str | None = None


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
        vocab = self.model.vocab
        highest = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
        return 1 + max([highest, *(token.id for token in self.added_tokens)])

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
    if not path.is_file():
        files = sorted(folder.glob("*.gguf"))
        named = f"name the file in it: {files[0]}" if files else "name a model directory or a .gguf file"
        raise ModelError(f"{folder} holds no config.json; {named}")
    return path


def read_spec(folder: Path) -> tuple[ModelSpec, HFConfig]:
    """config.json, checked."""
    path = config_path(folder)
    kind = read_json(path, _Architecture)
    names = kind.architectures or [f"of type {kind.model_type!r}"]
    known = [ARCHITECTURES[name] for name in names if name in ARCHITECTURES]
    if not known and not (kind.architectures is None and kind.model_type == "llama"):
        raise ModelError(f"{path}: architecture {names[0]} is not supported; supported: {', '.join(ARCHITECTURES)}")
    config = read_json(path, HFConfig)
    return _spec(path, config), config


def _spec(path: Path, config: HFConfig) -> ModelSpec:
    def positive(key: str, value: int, high: int) -> int:
        if not 1 <= value <= high:
            raise ModelError(f"{path}: {key} is {value}; it must lie between 1 and {high}")
        return value

    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method", "unknown")
        raise ModelError(f"{path}: quantization_config ({method}) is not supported; supported: bf16, f16, f32, or GGUF")
    if config.hidden_act not in ("silu", "swish"):
        raise ModelError(f"{path}: hidden_act {config.hidden_act!r} is not supported; supported: silu")
    if config.partial_rotary_factor != 1.0:
        raise ModelError(f"{path}: partial_rotary_factor {config.partial_rotary_factor} is not supported; supported: 1")
    hidden = positive("hidden_size", config.hidden_size, 1 << 20)
    heads = positive("num_attention_heads", config.num_attention_heads, 1 << 14)
    given = config.num_key_value_heads
    kv_heads = positive("num_key_value_heads", heads if given is None else given, heads)
    head_dim = positive("head_dim", hidden // heads if config.head_dim is None else config.head_dim, 1 << 12)
    if head_dim % 2 or heads % kv_heads:
        raise ModelError(f"{path}: {heads} heads of {head_dim} over {kv_heads} KV heads do not divide evenly")
    if not 0.0 < config.rms_norm_eps < 1.0:
        raise ModelError(f"{path}: rms_norm_eps is {config.rms_norm_eps}; it must lie between 0 and 1")
    return ModelSpec(
        architecture="llama",
        hidden=hidden,
        layers=positive("num_hidden_layers", config.num_hidden_layers, 1 << 12),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=positive("intermediate_size", config.intermediate_size, 1 << 24),
        vocab=positive("vocab_size", config.vocab_size, 1 << 24),
        max_context=positive("max_position_embeddings", config.max_position_embeddings, 1 << 31),
        norm_eps=config.rms_norm_eps,
        rope_theta=_rope_theta(path, config),
        tied=config.tie_word_embeddings,
        attn_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )


def _rope_theta(path: Path, config: HFConfig) -> float:
    """The base; the older format keeps it at the top, the newer one in rope_parameters with the kind of scaling."""
    theta = config.rope_theta
    for key, rope in (("rope_parameters", config.rope_parameters), ("rope_scaling", config.rope_scaling)):
        if rope is None:
            continue
        kind = rope.get("rope_type", rope.get("type", "default"))
        trivial = kind in ("default", "none", None) or (kind == "linear" and rope.get("factor") == 1.0)
        if not trivial:
            raise ModelError(f"{path}: {key} of type {kind!r} is not supported; supported: default")
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise ModelError(f"{path}: {key}.partial_rotary_factor is not supported; supported: 1")
        theta = rope.get("rope_theta", theta) if theta is None else theta
    theta = 10000.0 if theta is None else theta
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 1.0 < theta < 1e30:
        raise ModelError(f"{path}: rope_theta is {theta!r}; it must be a number above 1")
    return float(theta)


def tokenizer_facts(folder: Path) -> TokenizerFacts:
    """The facts of tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        config_path(folder)
        raise ModelError(f"{folder} holds no tokenizer.json, without which the model cannot read or write text")
    facts = read_json(path, TokenizerFacts, TOKENIZER_BYTES)
    vocab = facts.model.vocab
    ids = [token.id for token in facts.added_tokens]
    ids += [min(vocab.values(), default=0), max(vocab.values(), default=0)] if isinstance(vocab, dict) else []
    if ids and not 0 <= min(ids) <= max(ids) < 1 << 24:
        raise ModelError(f"{path} is damaged: token ids lie between {min(ids)} and {max(ids)}")
    return facts


def special_strings(folder: Path) -> dict[str, str]:
    """bos_token, eos_token and so on of tokenizer_config.json."""
    config = tokenizer_config(folder)
    found = {}
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
    if not path.is_file():
        return {}
    content: dict[str, Any] = read_json(path, dict, 1 << 24)
    return content


def eos_ids(folder: Path, config_eos: Eos, facts: TokenizerFacts) -> tuple[int, ...]:
    """Every id that ends a text: generation_config.json's, or else config.json's, and the tokeniser's own."""
    path = folder / "generation_config.json"
    wanted: Eos = None
    if path.is_file():
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
