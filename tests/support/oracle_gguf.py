"""Writes a transformers model as a GGUF file, with the names, metadata and orders of rows that converters use.

Where the file's type is a quantised one, the model's own matrices become what the file holds, so that it stays the
oracle of the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.tiny import interleave_rows

NAMES = {
    "mistral": "llama",
    "mixtral": "llama",
    "gemma3_text": "gemma3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
"""model_type -> GGUF architecture, where they differ."""
INTERLEAVED = ("llama", "granite", "smollm3")
"""Architectures whose q and k rows are stored as pairs of neighbours."""


def write(
    model: Any,
    path: Path,
    quant: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: dict[str, Any] | None = None,
) -> None:
    """extra: further metadata of the architecture, numbers or lists of booleans; None leaves a key out."""
    config = model.config
    architecture = NAMES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    values = {**sizes(config, architecture), **family(config), **rope(config, architecture), **(extra or {})}
    for key, value in values.items():
        _add(writer, f"{architecture}.{key}", value)
    _tokenizer(writer, config.vocab_size)
    for name, parts in stored(model, architecture):
        matrix = parts[0].values.ndim > 1 and "ffn_gate_inp" not in name
        kind = quant if matrix else gguf.GGMLQuantizationType.F32
        raw = [gguf.quants.quantize(part.in_file(), kind) for part in parts]
        writer.add_tensor(name, raw[0] if len(raw) == 1 else np.stack(raw), raw_dtype=kind)
        if kind != gguf.GGMLQuantizationType.F32:
            for part, bits in zip(parts, raw, strict=True):
                part.take(gguf.quants.dequantize(bits, kind))
    for name, values in rope_tensors(config):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sizes(config: Any, architecture: str) -> dict[str, Any]:
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    if getattr(config, "head_dim", None) is not None:
        values |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if architecture in INTERLEAVED:
        values |= {"vocab_size": config.vocab_size, "rope.dimension_count": _head_dim(config)}
    return values


def family(config: Any) -> dict[str, Any]:
    """What single architectures add."""
    read = {
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
        "expert_count": "num_local_experts" if hasattr(config, "num_local_experts") else "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_weights_norm": "norm_topk_prob",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    }
    if not config.model_type.startswith(("gemma", "phi3", "granite", "mixtral", "qwen2_moe", "qwen3_moe")):
        return {}
    found = {key: getattr(config, name, None) for key, name in read.items()}
    if config.model_type.endswith("_moe") or config.model_type == "mixtral":
        found["attention.sliding_window"] = None
    if config.model_type == "phi3":
        found["attention.sliding_window"] = config.sliding_window or 0
    if config.model_type == "gemma3_text" and config._sliding_window_pattern != 6:
        found["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
    return found


def rope(config: Any, architecture: str) -> dict[str, Any]:
    parameters = config.rope_parameters
    local = parameters.get("sliding_attention")
    parameters = parameters.get("full_attention", parameters)
    values = {"rope.freq_base": parameters["rope_theta"]}
    if local is not None:
        values["rope.freq_base_swa"] = local["rope_theta"]
    kind = parameters["rope_type"]
    if kind in ("linear", "yarn", "longrope"):
        values["rope.scaling.type"] = kind
    if kind in ("linear", "yarn"):
        values["rope.scaling.factor"] = float(parameters["factor"])
    if kind == "yarn":
        values["rope.scaling.original_context_length"] = parameters["original_max_position_embeddings"]
        values["rope.scaling.yarn_beta_fast"] = parameters.get("beta_fast")
        values["rope.scaling.yarn_beta_slow"] = parameters.get("beta_slow")
    if architecture == "phi3":
        values["rope.dimension_count"] = int(_head_dim(config) * parameters.get("partial_rotary_factor", 1.0))
        original = parameters.get("original_max_position_embeddings", config.original_max_position_embeddings)
        values["rope.scaling.original_context_length"] = original
        if kind == "longrope":
            scale = max(1.0, config.max_position_embeddings / original)
            values["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    return values


def rope_tensors(config: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Divisors of the rotary frequencies, for the kinds of scaling that metadata cannot express."""
    parameters = config.rope_parameters.get("full_attention", config.rope_parameters)
    if parameters["rope_type"] == "longrope":
        yield "rope_factors_long.weight", np.array(parameters["long_factor"], np.float32)
        yield "rope_factors_short.weight", np.array(parameters["short_factor"], np.float32)
    if parameters["rope_type"] != "llama3":
        return
    half = _head_dim(config) // 2
    lengths = 2 * math.pi * parameters["rope_theta"] ** (np.arange(half) / half)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    ratio = parameters["original_max_position_embeddings"] / lengths
    smooth = np.clip((ratio - low) / (high - low), 0.0, 1.0)
    yield "rope_freqs.weight", (1 / ((1 - smooth) / parameters["factor"] + smooth)).astype(np.float32)


@dataclass(frozen=True)
class Part:
    """A view of one of the model's parameters, and how the file holds it."""

    values: np.ndarray
    heads: int | None = None
    """Rows of each head are stored as pairs of neighbours."""
    plus_one: bool = False

    def in_file(self) -> np.ndarray:
        values = self.values + np.float32(1) if self.plus_one else self.values
        return np.ascontiguousarray(values if self.heads is None else interleave_rows(values, self.heads))

    def take(self, values: np.ndarray) -> None:
        """The model computes with what the file holds."""
        if self.heads is not None:
            values = values.reshape(self.heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        self.values[...] = values


def stored(model: Any, architecture: str) -> Iterator[tuple[str, list[Part]]]:
    """Each tensor of the file with its parts; more than one is a stack, one part an expert."""
    config = model.config
    names = gguf.get_tensor_name_map(_architecture(architecture), config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        prefix = f"blk.{layer[1]}." if layer else ""
        if name.endswith("experts.gate_up_proj"):
            half = values.shape[1] // 2
            yield f"{prefix}ffn_gate_exps.weight", [Part(expert[:half]) for expert in values]
            yield f"{prefix}ffn_up_exps.weight", [Part(expert[half:]) for expert in values]
        elif name.endswith("experts.down_proj"):
            yield f"{prefix}ffn_down_exps.weight", [Part(expert) for expert in values]
        elif name.endswith("shared_expert_gate.weight"):
            yield f"{prefix}ffn_gate_inp_shexp.weight", [Part(values[0])]
        elif name != "lm_head.weight" or not config.tie_word_embeddings:
            file_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert file_name is not None, name
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            pairs = heads.get(name.split(".")[-2]) if architecture in INTERLEAVED else None
            plus_one = config.model_type.startswith("gemma") and name.endswith("norm.weight")
            yield file_name, [Part(values, pairs, plus_one)]


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _architecture(name: str) -> gguf.MODEL_ARCH:
    return next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == name)


def _tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"w{i}" for i in range(vocab)])
    writer.add_token_types([1] * vocab)
    writer.add_token_merges(["w 0"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int) and not key.endswith(("scale", "softcapping", "freq_base", "freq_base_swa")):
        writer.add_uint32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        writer.add_float32(key, float(value))
