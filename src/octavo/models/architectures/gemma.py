"""What Gemma 2 and Gemma 3 share: four norms a layer, windows on some layers, GELU, an embedding that is scaled.

Owns no architecture; `gemma2.py` and `gemma3.py` say what differs. A norm's weight is stored less one in Hugging Face
files, and as it is in GGUF files. The embedding's scale is the square root of its width, rounded to float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from octavo.models.architecture import TensorRule
from octavo.models.architectures import decoder
from octavo.models.architectures.decoder import Act, HFDefaults
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.rope import RopeDefaults
from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")

_ACTS: Mapping[str, Act] = {"gelu_pytorch_tanh": "gelu"}
_IGNORED_ACTS: Mapping[str, Act] = {"silu": "gelu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu"}
"""Of `hidden_act`, which these configurations may hold and nothing reads: `hidden_activation` counts."""
_WINDOW = 4096
_LAYER_TYPES = {"sliding_attention": True, "full_attention": False}


def hf_spec(config: ConfigReader, name: str, rope: RopeDefaults, context: int, rope_layers: str | None) -> ModelSpec:
    """All but windows and soft caps. rope_layers: the layer type whose rotary embedding is the first."""
    defaults = HFDefaults(
        tied=True,
        max_context=context,
        kv_heads=4,
        head_dim=256,
        rope=rope,
        rope_layers=rope_layers,
        acts=_IGNORED_ACTS,
    )
    spec = decoder.hf_decoder(config, name, defaults)
    if config.flag("use_bidirectional_attention"):
        raise config.error("use_bidirectional_attention is not supported: the model is no decoder")
    bias = config.flag("attention_bias")
    return replace(
        _scaled(spec),
        act=config.choice("hidden_activation", "gelu_pytorch_tanh", _ACTS),
        qkv_bias=bias,
        o_bias=bias,
        attn_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
    )


def hf_cap(config: ConfigReader, key: str, default: float | None) -> float | None:
    """A soft cap; null is no cap, and an absent key the default."""
    if not config.has(key):
        return None if key in config.values else default
    return config.number(key)


def hf_windows(config: ConfigReader, spec: ModelSpec, period: int) -> ModelSpec:
    """As `layer_types` says, or on all layers but each `period`th."""
    window = config.integer("sliding_window", _WINDOW, low=1)
    must = f"of {' or '.join(_LAYER_TYPES)}"
    kinds = config.items("layer_types", spec.layers, str, must)
    if kinds is None:
        flags = _periodic(spec.layers, period)
    elif all(kind in _LAYER_TYPES for kind in kinds):
        flags = [_LAYER_TYPES[kind] for kind in kinds]
    else:
        raise config.wrong("layer_types", f"a list of {spec.layers} {must}")
    return decoder.with_windows(spec, [window if flag else None for flag in flags])


def gguf_spec(meta: Metadata, name: str, wide_layers: int) -> ModelSpec:
    """All but windows and soft caps. wide_layers: the depth of the one size that scales scores by hidden / heads."""
    spec = decoder.gguf_decoder(meta, name)
    size = spec.hidden // spec.heads if spec.layers == wide_layers else spec.head_dim
    return replace(_scaled(spec), act="gelu", attn_scale=size**-0.5)


def gguf_windows(meta: Metadata, spec: ModelSpec, window: int, period: int) -> ModelSpec:
    """As the pattern in the metadata says (one flag a layer, or a period), or with the given period."""
    key = ".attention.sliding_window_pattern"
    pattern = meta.values.get(meta.full(key)) if meta.has(key) else None
    if isinstance(pattern, np.ndarray):
        if len(pattern) < spec.layers:
            raise meta.error(f"metadata key {meta.full(key)} holds {len(pattern)} flags for {spec.layers} layers")
        flags = [bool(flag) for flag in pattern[: spec.layers]]
    else:
        flags = _periodic(spec.layers, meta.integer(key, period, low=1))
    return decoder.with_windows(spec, [window if flag else None for flag in flags])


def _periodic(layers: int, period: int) -> list[bool]:
    """Each `period`th layer sees everything."""
    return [(i + 1) % period != 0 for i in range(layers)]


def _scaled(spec: ModelSpec) -> ModelSpec:
    return replace(spec, embed_scale=float(np.float32(spec.hidden**0.5)))


def tensors(spec: ModelSpec, qk_norm: bool) -> list[TensorRule]:
    """qk_norm: q and k are normed a head."""
    norms = {
        "attn_norm": ("input_layernorm", "attn_norm"),
        "attn_post_norm": ("post_attention_layernorm", "post_attention_norm"),
        "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
        "mlp_post_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }
    rules = [decoder.embed_rule(spec)]
    for i in range(spec.layers):
        rules += decoder.attention_rules(spec, i) + decoder.mlp_rules(spec, i)
        for part, names in norms.items():
            rules.append(_norm(i, part, spec.hidden, *names))
        if qk_norm:
            rules += [_norm(i, f"attn.{x}_norm", spec.head_dim, f"self_attn.{x}_norm", f"attn_{x}_norm") for x in "qk"]
    return rules + decoder.end_rules(spec, plus_one=True)


def _norm(i: int, part: str, size: int, hf: str, gguf: str) -> TensorRule:
    return decoder.layer_rule(i, f"{part}.weight", (size,), f"{hf}.weight", f"{gguf}.weight", plus_one=True)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int, qk_norm: bool) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    x = ops.embed("embed.weight", spec.embed_scale)
    for i, layer in enumerate(spec.layer_specs):
        attn, mlp = f"layers.{i}.attn", f"layers.{i}.mlp"

        h = ops.rms_norm(x, f"{attn}_norm.weight", spec.norm_eps)
        qkv = ops.linear(h, decoder.names(attn, "qkv", "weight"), _biases(attn, "qkv", spec.qkv_bias))
        if qk_norm:
            qkv = ops.qk_norm(qkv, f"{attn}.q_norm.weight", f"{attn}.k_norm.weight", spec.norm_eps, i, spec.heads)
        q = ops.rope_and_store(qkv, i, spec.heads, layer.rope)
        ops.layer_written(i)
        a = ops.attention(q, i, spec.heads, spec.score_scale, layer.window, spec.attn_softcap)
        h = ops.linear(a, [f"{attn}.o.weight"], _biases(attn, "o", spec.o_bias))
        x = ops.rms_norm(h, f"{attn}_post_norm.weight", spec.norm_eps, residual=x)

        h = ops.rms_norm(x, f"{mlp}_norm.weight", spec.norm_eps)
        h = ops.gelu_mul(ops.linear(h, [f"{mlp}.gate.weight", f"{mlp}.up.weight"]))
        h = ops.linear(h, [f"{mlp}.down.weight"])
        x = ops.rms_norm(h, f"{mlp}_post_norm.weight", spec.norm_eps, residual=x)

    return decoder.head(ops, spec, x, num_tokens)


def _biases(attn: str, letters: str, has: bool) -> list[str] | None:
    return decoder.names(attn, letters, "bias") if has else None
