"""A model's sizes and constants as config.json and as GGUF metadata, from its spec.

What a spec holds is written in the words of its architecture; the caller then opens the result and compares specs, so
that a setting with no words for it in the new format is an error and never lost. Owns nothing; off switch: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from octavo.models.architecture import Architecture
from octavo.models.convert.plan import Target
from octavo.models.rope import Dynamic, LongRope, base_frequencies
from octavo.models.spec import ModelSpec, RopeSpec


@dataclass(frozen=True)
class Rope:
    """What the source says of its rotary embeddings beside the frequencies."""

    theta: float
    section: Mapping[str, Any] = field(default_factory=dict)
    """In config.json's words."""


def clean(value: float) -> float:
    """The shortest decimal of a float32: what was meant by a number that a GGUF file holds."""
    return float(str(np.float32(value)))


# --- config.json --------------------------------------------------------------------------------------


def hf_config(architecture: Architecture, spec: ModelSpec, rope: Rope, dtype: str) -> dict[str, Any]:
    """All but token ids."""
    config: dict[str, Any] = {
        "architectures": [architecture.hf_classes[0]],
        "model_type": architecture.model_types[0],
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_context,
        "rms_norm_eps": clean(spec.norm_eps),
        "tie_word_embeddings": spec.tied,
        "hidden_act": "silu" if spec.act == "silu" else "gelu_pytorch_tanh",
        "attention_bias": spec.o_bias,
        "mlp_bias": spec.mlp_bias,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(dtype, "float32"),
        "rope_theta": clean(rope.theta),
    }
    section = _hf_rope(spec, rope)
    if section:
        config["rope_scaling"] = section
    if spec.architecture == "phi3" and "original_max_position_embeddings" in section:
        config["original_max_position_embeddings"] = section["original_max_position_embeddings"]
    rotary = 2 * len(spec.ropes[0].inverse_frequencies)
    if rotary != spec.head_dim:
        config["partial_rotary_factor"] = rotary / spec.head_dim
    _hf_windows(config, spec)
    _hf_constants(config, spec)
    if spec.moe is not None:
        _hf_experts(config, spec, architecture.name)
    return config


def _hf_windows(config: dict[str, Any], spec: ModelSpec) -> None:
    windows = [layer.window for layer in spec.layer_specs]
    used = {window for window in windows if window is not None}
    if not used:
        return
    config["sliding_window"] = max(used)
    if spec.architecture.startswith(("qwen", "smollm")):
        config["use_sliding_window"] = True
    if None in windows:
        config["layer_types"] = ["full_attention" if window is None else "sliding_attention" for window in windows]


def _hf_constants(config: dict[str, Any], spec: ModelSpec) -> None:
    if spec.architecture.startswith("gemma"):
        config["hidden_activation"] = config["hidden_act"]
        scalar = round(spec.score_scale**-2, 6)
        config["query_pre_attn_scalar"] = int(scalar) if scalar.is_integer() else scalar
        config["attn_logit_softcapping"] = spec.attn_softcap
        config["final_logit_softcapping"] = spec.logit_softcap
        if len(spec.ropes) > 1:
            config["rope_local_base_freq"] = theta_of(spec.ropes[1])
    elif spec.architecture.startswith("granite"):
        config["embedding_multiplier"] = clean(spec.embed_scale)
        config["residual_multiplier"] = clean(spec.residual_scale)
        config["attention_multiplier"] = clean(spec.score_scale)
        config["logits_scaling"] = clean(1 / spec.logit_scale)
    rotated = [layer.rope is not None for layer in spec.layer_specs]
    if not all(rotated):
        config["no_rope_layers"] = [int(flag) for flag in rotated]


def _hf_experts(config: dict[str, Any], spec: ModelSpec, name: str) -> None:
    assert spec.moe is not None
    moe = spec.moe
    config["num_experts_per_tok"] = moe.top_k
    if name == "mixtral":
        config["num_local_experts"] = moe.experts
        return
    config["num_experts"] = moe.experts
    config["mlp_only_layers"] = [i for i, layer in enumerate(spec.layer_specs) if not layer.moe]
    config["moe_intermediate_size"] = moe.intermediate
    config["norm_topk_prob"] = moe.renormalise
    if moe.shared_intermediate is not None:
        config["shared_expert_intermediate_size"] = moe.shared_intermediate


def theta_of(rope: RopeSpec) -> float:
    """The base of unscaled frequencies, as a number of few digits."""
    pairs = len(rope.inverse_frequencies)
    theta = rope.inverse_frequencies[1] ** -pairs if pairs > 1 else 10000.0
    return float(f"{theta:.6g}")


def _hf_rope(spec: ModelSpec, rope: Rope) -> dict[str, Any]:
    """rope_scaling; from the source's own words where it has them."""
    first = spec.ropes[0]
    if rope.section:
        return {key: value for key, value in rope.section.items() if key != "rope_theta"}
    if isinstance(first.scaling, LongRope):
        long = first.scaling
        return {
            "rope_type": "longrope",
            "short_factor": list(long.short),
            "long_factor": list(long.long),
            "original_max_position_embeddings": long.original,
            "attention_factor": long.scale,
        }
    base = base_frequencies(clean(rope.theta), 2 * len(first.inverse_frequencies))
    factors = base / np.asarray(first.inverse_frequencies)
    if first.kind == "linear":
        return {"rope_type": "linear", "factor": clean(float(factors[0]))}
    if first.kind == "llama3":  # the constants that every published model has; the comparison of specs proves them
        return {
            "rope_type": "llama3",
            "factor": clean(float(factors.max())),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return {}


# --- GGUF metadata ------------------------------------------------------------------------------------


def gguf_metadata(architecture: Architecture, spec: ModelSpec, rope: Rope, name: str) -> dict[str, Any]:
    """All but the tokeniser."""
    prefix = architecture.gguf_names[0]
    values: dict[str, Any] = {
        ".block_count": spec.layers,
        ".context_length": spec.max_context,
        ".embedding_length": spec.hidden,
        ".feed_forward_length": spec.intermediate,
        ".attention.head_count": spec.heads,
        ".attention.head_count_kv": spec.kv_heads,
        ".attention.key_length": spec.head_dim,
        ".attention.value_length": spec.head_dim,
        ".attention.layer_norm_rms_epsilon": spec.norm_eps,
        ".vocab_size": spec.vocab,
        ".rope.dimension_count": 2 * len(spec.ropes[0].inverse_frequencies),
        ".rope.freq_base": rope.theta,
        **_gguf_rope(spec, rope),
        **_gguf_constants(spec),
    }
    if len(spec.ropes) > 1:
        values[".rope.freq_base_swa"] = theta_of(spec.ropes[1])
    windows = [layer.window for layer in spec.layer_specs]
    used = {window for window in windows if window is not None}
    if used:
        values[".attention.sliding_window"] = max(used)
        if None in windows:
            values[".attention.sliding_window_pattern"] = np.array([window is not None for window in windows])
    if spec.moe is not None:
        values[".expert_count"], values[".expert_used_count"] = spec.moe.experts, spec.moe.top_k
        values[".expert_feed_forward_length"] = spec.moe.intermediate
        values[".expert_weights_norm"] = spec.moe.renormalise
        if spec.moe.shared_intermediate is not None:
            values[".expert_shared_feed_forward_length"] = spec.moe.shared_intermediate
    return {
        "general.architecture": prefix,
        "general.name": name,
        **{f"{prefix}{key}": value for key, value in values.items()},
    }


def _gguf_constants(spec: ModelSpec) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if spec.attn_softcap is not None:
        values[".attn_logit_softcapping"] = spec.attn_softcap
    if spec.logit_softcap is not None:
        values[".final_logit_softcapping"] = spec.logit_softcap
    if spec.architecture.startswith("granite"):
        values[".embedding_scale"] = spec.embed_scale
        values[".residual_scale"] = spec.residual_scale
        values[".attention.scale"] = spec.score_scale
        values[".logit_scale"] = 1 / spec.logit_scale
    return values


def _gguf_rope(spec: ModelSpec, rope: Rope) -> dict[str, Any]:
    first = spec.ropes[0]
    if isinstance(first.scaling, LongRope):
        return {
            ".rope.scaling.original_context_length": first.scaling.original,
            ".rope.scaling.attn_factor": first.scaling.scale,
        }
    assert not isinstance(first.scaling, Dynamic), "refused before"
    if first.kind == "linear":
        factors = base_frequencies(rope.theta, 2 * len(first.inverse_frequencies)) / first.inverse_frequencies
        return {".rope.scaling.type": "linear", ".rope.scaling.factor": clean(float(factors[0]))}
    if first.kind == "yarn":
        section = rope.section
        original = section.get("original_max_position_embeddings", spec.max_context)
        return {
            ".rope.scaling.type": "yarn",
            ".rope.scaling.factor": float(section.get("factor", spec.max_context / original)),
            ".rope.scaling.original_context_length": int(original),
        }
    return {}


def gguf_factors(spec: ModelSpec, rope: Rope) -> dict[str, np.ndarray]:
    """Tensors that stand for a kind of scaling."""
    first = spec.ropes[0]
    if isinstance(first.scaling, LongRope):
        return {
            "rope_factors_long.weight": np.array(first.scaling.long, np.float32),
            "rope_factors_short.weight": np.array(first.scaling.short, np.float32),
        }
    if first.kind == "llama3":
        base = base_frequencies(rope.theta, 2 * len(first.inverse_frequencies))
        return {"rope_freqs.weight": (base / np.asarray(first.inverse_frequencies)).astype(np.float32)}
    return {}


def float_target(name: str, values: np.ndarray) -> Target:
    return Target(name, "F32", values.shape)


# --- Comparison ---------------------------------------------------------------------------------------


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Names of the fields in which two specs differ by more than the rounding of float32."""
    if is_dataclass(one) and type(one) is type(other):
        found = []
        for part in fields(one):
            name = f"{where}.{part.name}" if where else part.name
            if part.name != "kind":
                found += differences(getattr(one, part.name), getattr(other, part.name), name)
        return found
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return list(dict.fromkeys(d for a, b in zip(one, other, strict=True) for d in differences(a, b, where)))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return [] if abs(one - other) <= 1e-6 * max(abs(one), abs(other)) else [where]
    return [] if one == other else [where]
