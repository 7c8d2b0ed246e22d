"""Qwen3-MoE: a Qwen3 (heads of q and k are normed before they are rotated) with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import decoder, experts
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")

DEFAULTS = decoder.HFDefaults(kv_heads=4, max_context=32768)


def hf_spec(config: ConfigReader) -> ModelSpec:
    bias = config.flag("attention_bias")
    spec = replace(decoder.hf_decoder(config, "qwen3_moe", DEFAULTS), qkv_bias=bias, o_bias=bias)
    spec = decoder.with_windows(spec, [experts.hf_optional_window(config)] * spec.layers)
    intermediate = config.integer("moe_intermediate_size", 768, low=1, high=1 << 24)
    moe = experts.hf_moe(config, experts.HFSizes(128, 8, intermediate, config.flag("norm_topk_prob")))
    return experts.with_experts(spec, moe, experts.hf_sparse_layers(config, spec.layers))


def gguf_spec(meta: Metadata) -> ModelSpec:
    spec = decoder.gguf_decoder(meta, "qwen3_moe")
    inner = meta.integer(".expert_feed_forward_length", low=1, high=1 << 24)
    return experts.with_experts(spec, experts.gguf_moe(meta, inner, renormalise=True))


def tensors(spec: ModelSpec) -> list[TensorRule]:
    rules = [decoder.embed_rule(spec)]
    for i in range(spec.layers):
        before_attention, before_mlp = decoder.pre_norm_rules(spec, i)
        rules += [before_attention, *decoder.attention_rules(spec, i), *decoder.qk_norm_rules(spec, i), before_mlp]
        has_experts = spec.layer_specs[i].moe
        rules += experts.expert_rules(spec, i, experts.QWEN) if has_experts else decoder.mlp_rules(spec, i)
    return rules + decoder.end_rules(spec)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    x = decoder.embed(ops, spec)
    for i in range(spec.layers):
        h = decoder.norm(ops, spec, x, f"layers.{i}.attn_norm.weight")
        qkv = decoder.qk_norm(ops, spec, i, decoder.qkv_product(ops, spec, i, h))
        x = decoder.output(ops, spec, i, decoder.attention(ops, spec, i, qkv), x)
        h = decoder.norm(ops, spec, x, f"layers.{i}.mlp_norm.weight")
        x = experts.mixture(ops, spec, i, h, x) if spec.layer_specs[i].moe else decoder.mlp(ops, spec, i, h, x)
    return decoder.head(ops, spec, x, num_tokens)


ARCHITECTURE = Architecture(
    name="qwen3_moe",
    hf_classes=("Qwen3MoeForCausalLM",),
    model_types=("qwen3_moe",),
    gguf_names=("qwen3moe",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=forward,
)
