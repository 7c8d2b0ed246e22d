"""Tiny random Llama models, written as a directory of safetensors or as a GGUF file, and a small tokeniser.

The values depend on the seed and the sizes alone. `TinyModel.weights` holds canonical tensors in float32, already
rounded to what the file can express where the type is a float type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from octavo.models.names import Naming, file_name
from octavo.models.registry import rules_of
from octavo.models.rope import base_frequencies, spec_of
from octavo.models.spec import LayerSpec, ModelSpec
from octavo.models.tokenizer import byte_alphabet

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "e r", "o n", "Ġ a", "l l", "Ġ Ġ")
BASE_VOCAB = len(SPECIALS) + 256 + len(MERGES)
"""Tokens of the small tokeniser; a model's `vocab` may be larger (padded) but not smaller."""


@dataclass(frozen=True)
class Tiny:
    """Sizes of a tiny model."""

    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int | None = None
    """None: hidden / heads."""
    layers: int = 2
    intermediate: int = 96
    vocab: int = BASE_VOCAB
    tied: bool = True
    max_context: int = 256
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    attn_bias: bool = False
    mlp_bias: bool = False
    seed: int = 0

    def spec(self) -> ModelSpec:
        head_dim = self.head_dim or self.hidden // self.heads
        return ModelSpec(
            architecture="llama",
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=head_dim,
            intermediate=self.intermediate,
            vocab=self.vocab,
            max_context=self.max_context,
            norm_eps=self.norm_eps,
            tied=self.tied,
            ropes=(spec_of(base_frequencies(self.rope_theta, head_dim), "default"),),
            layer_specs=(LayerSpec(),) * self.layers,
            qkv_bias=self.attn_bias,
            o_bias=self.attn_bias,
            mlp_bias=self.mlp_bias,
        )


@dataclass(frozen=True)
class TinyModel:
    """A written model."""

    path: Path
    spec: ModelSpec
    weights: dict[str, np.ndarray] = field(repr=False)


def file_names(spec: ModelSpec, naming: Naming) -> dict[str, str]:
    """Canonical name -> name in a file."""
    return {rule.canonical: file_name(rule, naming) for rule in rules_of(spec)}


def random_weights(tiny: Tiny) -> dict[str, np.ndarray]:
    """Canonical float32 tensors, scaled so that logits are neither flat nor one-hot."""
    rng = np.random.default_rng(tiny.seed)
    weights = {}
    for rule in rules_of(tiny.spec()):
        name, shape = rule.canonical, rule.shape
        values = rng.standard_normal(shape).astype(np.float32)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.1 * values
        elif name.endswith(".bias"):
            values = 0.1 * values
        elif name not in ("embed.weight", "head.weight"):
            values = values * np.float32(shape[1] ** -0.5)
        weights[name] = values.astype(np.float32)
    return weights


def vocabulary(size: int = BASE_VOCAB) -> dict[str, int]:
    """Special tokens, all bytes, the merges' results."""
    assert size >= BASE_VOCAB, f"a model needs at least {BASE_VOCAB} tokens"
    tokens = [*SPECIALS, *sorted(byte_alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    return {token: i for i, token in enumerate(tokens)}


def tokenizer_json() -> dict[str, Any]:
    """A byte-level BPE in the format of tokenizer.json."""
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, split],
        },
        "post_processor": None,
        "decoder": split,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary(),
            "merges": [merge.split(" ") for merge in MERGES],
        },
    }


def hf_config(tiny: Tiny, dtype: str) -> dict[str, Any]:
    """config.json."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": tiny.hidden,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "intermediate_size": tiny.intermediate,
        "vocab_size": tiny.vocab,
        "max_position_embeddings": tiny.max_context,
        "rms_norm_eps": tiny.norm_eps,
        "rope_theta": tiny.rope_theta,
        "tie_word_embeddings": tiny.tied,
        "attention_bias": tiny.attn_bias,
        "mlp_bias": tiny.mlp_bias,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype],
    }
    if tiny.head_dim is not None:
        config["head_dim"] = tiny.head_dim
    return config


_DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32") -> None:
    """One file; arrays are converted to `dtype`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, values in tensors.items():
        blob = values.astype(_DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_hf(folder: Path, tiny: Tiny | None = None, dtype: str = "F32", shards: int = 1) -> TinyModel:
    """A model directory: config, weights in `shards` files, tokeniser, chat template, generation configuration."""
    tiny = tiny or Tiny()
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: values.astype(_DTYPES[dtype]).astype(np.float32) for name, values in random_weights(tiny).items()}
    names = file_names(tiny.spec(), "hf")
    named = {names[name]: values for name, values in weights.items()}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", named, dtype)
    else:
        _write_shards(folder, named, dtype, shards)
    _write_json(folder / "config.json", hf_config(tiny, dtype))
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    _write_json(folder / "tokenizer.json", tokenizer_json())
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return TinyModel(folder, tiny.spec(), weights)


def _write_shards(folder: Path, named: dict[str, np.ndarray], dtype: str, shards: int) -> None:
    names = list(named)
    weight_map = {}
    for i in range(shards):
        part = names[i::shards]
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(folder / file, {name: named[name] for name in part}, dtype)
        weight_map |= dict.fromkeys(part, file)
    total = sum(values.size * _DTYPES[dtype].itemsize for values in named.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1))


def interleave_rows(values: np.ndarray, heads: int) -> np.ndarray:
    """Half-split rows of each head to the order in which GGUF stores q and k of a llama."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def write_gguf(
    path: Path,
    tiny: Tiny | None = None,
    kind: str = "F32",
    extra: dict[str, np.ndarray] | None = None,
    metadata: dict[str, Any] | None = None,
    tensors_a_part: int = 0,
) -> TinyModel:
    """A GGUF file (or parts of a few tensors each).

    Matrices are in `kind` (F32, F16, BF16, Q8_0, Q4_1 or any type that gguf can quantise), vectors in F32.

    `weights` of the result are the values that the file holds, dequantised. `metadata` adds strings and numbers.
    """
    import gguf

    tiny = tiny or Tiny()
    spec = tiny.spec()
    names = file_names(spec, "gguf")
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors_a_part)
    _gguf_metadata(writer, tiny, metadata or {})
    quant = gguf.GGMLQuantizationType[kind]
    weights = {}
    for name, values in random_weights(tiny).items():
        stored = values
        if ".attn.q." in name:
            stored = interleave_rows(values, spec.heads)
        elif ".attn.k." in name:
            stored = interleave_rows(values, spec.kv_heads)
        matrix = values.ndim == 2
        raw = gguf.quants.quantize(stored, quant) if matrix else stored
        writer.add_tensor(names[name], raw, raw_dtype=quant if matrix else gguf.GGMLQuantizationType.F32)
        exact = gguf.quants.quantize(values, quant) if matrix else values
        weights[name] = gguf.quants.dequantize(exact, quant).reshape(values.shape) if matrix else values
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyModel(path, replace(spec, norm_eps=float(np.float32(spec.norm_eps))), weights)


def _gguf_metadata(writer: Any, tiny: Tiny, metadata: dict[str, Any]) -> None:
    spec = tiny.spec()
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.max_context)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.intermediate)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(tiny.rope_theta)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_vocab_size(spec.vocab)
    tokens = list(vocabulary())
    padding = [f"[PAD{i}]" for i in range(spec.vocab - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens + padding)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)) + [5] * len(padding))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_float32(key, value)
