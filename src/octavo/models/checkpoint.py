"""Opens a model, whatever file it came in.

Owns nothing itself: `open_checkpoint` returns an object that maps its files until `close()`. Off switch: none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from octavo.models.digest import model_digest
from octavo.models.gguf import FLOAT_TYPES, SUPPORTED_TYPES, GgufFile
from octavo.models.gguf_parts import gguf_of, model_name, open_gguf
from octavo.models.names import Found, match
from octavo.models.spec import Checkpoint, ModelError, ModelSpec, Tensor
from octavo.models.store import cache_dir

log = logging.getLogger("octavo.models")

ARCHITECTURES = ("llama",)
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Token types of GGUF's metadata."""


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a .gguf file (or a part), or a directory; every error is a ModelError, one sentence for the user."""
    path = Path(path)
    file = gguf_of(path)
    if file is None:
        from octavo.models.hf import HFCheckpoint

        return HFCheckpoint(path)
    path = file
    if not path.exists():
        raise ModelError(f"{path} does not exist; name a .gguf file or a directory with config.json and safetensors")
    if not path.is_file():
        raise ModelError(f"{path} is no file; name a .gguf file or a directory with config.json and safetensors")
    if path.suffix == ".safetensors":
        raise ModelError(f"{path.name} is one file of a model; name its directory, which holds config.json too")
    return GgufCheckpoint(path)


class GgufCheckpoint:
    """A model in one GGUF file, or in the parts of a split one."""

    def __init__(self, path: Path) -> None:
        self.name = model_name(path)
        self._file = open_gguf(path)
        meta = Metadata(self._file)
        self.spec = gguf_spec(meta)
        self.num_tokens = gguf_num_tokens(meta)
        if self.num_tokens > self.spec.vocab:
            raise meta.error(f"the tokeniser knows {self.num_tokens} tokens, the embedding has {self.spec.vocab} rows")
        self.eos_token_ids = gguf_eos_ids(meta)
        found = {name: Found(tensor.type, tensor.shape) for name, tensor in self._file.tensors.items()}
        matched = match(path.name, self.spec, found, "gguf")
        self._canonical = {file_name: canonical for canonical, file_name in matched.names.items()}
        for file_name in self._canonical:
            kind = self._file.tensors[file_name].type
            if kind not in FLOAT_TYPES and len(self._file.tensors[file_name].shape) == 1:
                raise meta.error(f"tensor {file_name} is a vector of type {kind}; vectors must be F32, F16 or BF16")
            if kind not in SUPPORTED_TYPES:
                supported = ", ".join(SUPPORTED_TYPES)
                raise meta.error(f"tensor {file_name} has type {kind}, which is not supported; supported: {supported}")
        for name in matched.unknown:
            log.warning(
                "%s: tensor %s is not part of a %s model and is ignored", path.name, name, self.spec.architecture
            )
        self.total_bytes = sum(self._file.tensors[name].nbytes for name in self._canonical)

    def weights_id(self) -> str:
        return model_digest(self._file.paths, cache_dir())

    def sources(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        tensors = self._file.tensors
        return {canonical: (tensors[name].type, tensors[name].shape) for name, canonical in self._canonical.items()}

    def tensors(self) -> Iterator[Tensor]:
        spec = self.spec
        for tensor in self._file.in_order():
            canonical = self._canonical.get(tensor.name)
            if canonical is None:
                continue
            data = self._file.data(tensor.name)
            if ".attn.q." in canonical:
                data = half_split_rows(data, spec.heads, spec.head_dim)
            elif ".attn.k." in canonical:
                data = half_split_rows(data, spec.kv_heads, spec.head_dim)
            yield Tensor(canonical, tensor.type, tensor.shape, data)

    def close(self) -> None:
        self._file.close()


def half_split_rows(data: memoryview, heads: int, head_dim: int) -> memoryview:
    """Rows of each head from GGUF's interleaved order (0, d/2, 1, d/2 + 1, ...) to the half-split one. Copies."""
    rows = heads * head_dim
    table = np.frombuffer(data, np.uint8).reshape(heads, head_dim // 2, 2, len(data) // rows)
    return np.ascontiguousarray(table.swapaxes(1, 2)).reshape(-1).data


class Metadata:
    """Typed access to a GGUF file's metadata; a value of the wrong type is a ModelError."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.values = file.metadata

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.file.path.name}: {what}")

    def integer(self, key: str, default: int | None = None, low: int = 0, high: int = 1 << 31) -> int:
        value = self.values.get(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = value.flat[0].item()  # one number a layer, all alike
        if value is None:
            raise self.error(f"metadata key {key} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(f"metadata key {key} is {_short(value)}; it must be a whole number of {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if value is None:
            raise self.error(f"metadata key {key} is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < 1e30:
            raise self.error(f"metadata key {key} is {_short(value)}; it must be a positive number")
        return float(value)

    def string(self, key: str, default: str | None = None) -> str | None:
        value = self.values.get(key, default)
        if value is not None and not isinstance(value, str):
            raise self.error(f"metadata key {key} is {_short(value)}; it must be a string")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"metadata key {key} is {_short(value)}; it must be true or false")
        return value

    def strings(self, key: str) -> list[str]:
        value = self.values.get(key)
        if not isinstance(value, list) or not value:
            raise self.error(f"metadata key {key} is missing; the file holds no tokeniser")
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def gguf_spec(meta: Metadata) -> ModelSpec:
    """The sizes that the metadata and the embedding's shape give, checked against one another."""
    architecture = meta.string("general.architecture")
    if architecture not in ARCHITECTURES:
        raise meta.error(f"architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    key = f"{architecture}."
    if meta.integer(key + "expert_count", 0):
        raise meta.error("mixture-of-experts models are not supported")
    hidden = meta.integer(key + "embedding_length", low=1, high=1 << 20)
    heads = meta.integer(key + "attention.head_count", low=1, high=1 << 14)
    kv_heads = meta.integer(key + "attention.head_count_kv", heads, low=1, high=heads)
    head_dim = meta.integer(key + "attention.key_length", hidden // heads, low=2, high=1 << 12)
    if meta.integer(key + "attention.value_length", head_dim) != head_dim:
        raise meta.error("keys and values of different lengths are not supported")
    if head_dim % 2 or heads % kv_heads:
        raise meta.error(f"{heads} heads of {head_dim} over {kv_heads} KV heads do not divide evenly")
    if meta.integer(key + "rope.dimension_count", head_dim) != head_dim:
        raise meta.error(
            f"{key}rope.dimension_count must be the head size {head_dim}; partial rotation is not supported"
        )
    _refuse_rope_scaling(meta, key)
    embedding = meta.file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise meta.error("lacks tensor token_embd.weight; the file is incomplete or holds no language model")
    vocab = embedding.shape[0]
    if meta.integer(key + "vocab_size", vocab) != vocab:
        raise meta.error(f"{key}vocab_size is {meta.integer(key + 'vocab_size')}, token_embd.weight has {vocab} rows")
    tensors = meta.file.tensors
    return ModelSpec(
        architecture=architecture,
        hidden=hidden,
        layers=meta.integer(key + "block_count", low=1, high=1 << 12),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=meta.integer(key + "feed_forward_length", low=1, high=1 << 24),
        vocab=vocab,
        max_context=meta.integer(key + "context_length", low=1),
        norm_eps=meta.number(key + "attention.layer_norm_rms_epsilon"),
        rope_theta=meta.number(key + "rope.freq_base", 10000.0),
        tied="output.weight" not in tensors,
        attn_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
    )


def _refuse_rope_scaling(meta: Metadata, key: str) -> None:
    """Scaled rotary frequencies change every position; factors of one are no scaling."""
    kind = meta.string(key + "rope.scaling.type", "none")
    factor = meta.number(key + "rope.scaling.factor", 1.0)
    if kind != "none" and factor != 1.0:
        raise meta.error(f"RoPE scaling {kind!r} is not supported; supported: none")
    factors = meta.file.tensors.get("rope_freqs.weight")
    if factors is None:
        return
    if factors.type != "F32" or not (np.frombuffer(meta.file.data(factors.name), "<f4") == 1.0).all():
        raise meta.error(
            "tensor rope_freqs.weight scales the rotary frequencies (RoPE scaling 'llama3'), which is not supported"
        )


def gguf_token_types(meta: Metadata) -> Any:
    """One number a token: 1 normal, 3 control, 4 user-defined, 5 unused."""
    count = len(meta.strings("tokenizer.ggml.tokens"))
    types = meta.values.get("tokenizer.ggml.token_type")
    if types is None:
        return np.ones(count, np.int32)
    if not isinstance(types, np.ndarray) or len(types) != count:
        raise meta.error(f"tokenizer.ggml.token_type must hold one number for each of the {count} tokens")
    return types


def gguf_num_tokens(meta: Metadata) -> int:
    """Tokens up to the last one in use: converters fill the vocabulary up to the embedding's rows."""
    used = np.flatnonzero(gguf_token_types(meta) != UNUSED)
    return int(used[-1]) + 1 if used.size else 0


def gguf_eos_ids(meta: Metadata) -> tuple[int, ...]:
    """The ids that end a text, a turn or a message, without repetition."""
    count = len(meta.strings("tokenizer.ggml.tokens"))
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    present = [f"tokenizer.ggml.{key}" for key in keys if f"tokenizer.ggml.{key}" in meta.values]
    return tuple(dict.fromkeys(meta.integer(key, high=count - 1) for key in present))
