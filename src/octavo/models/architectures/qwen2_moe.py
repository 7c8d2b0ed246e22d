"""Qwen1.5-MoE and Qwen2-MoE: a Qwen2 with experts, and beside them one that every row passes, behind a gate."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import decoder, experts, mixtral
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelSpec

DEFAULTS = decoder.HFDefaults(kv_heads=16, max_context=32768)


def hf_spec(config: ConfigReader) -> ModelSpec:
    spec = replace(decoder.hf_decoder(config, "qwen2_moe", DEFAULTS), qkv_bias=config.flag("qkv_bias", True))
    first = config.integer("max_window_layers", 28)
    window = experts.hf_optional_window(config)
    sliding = [window is not None and i % 2 == 0 and i < first for i in range(spec.layers)]
    spec = decoder.with_windows(spec, decoder.hf_windows(config, spec.layers, window, sliding))
    intermediate = config.integer("moe_intermediate_size", 1408, low=1, high=1 << 24)
    sizes = experts.HFSizes(60, 4, intermediate, config.flag("norm_topk_prob"))
    shared = config.integer("shared_expert_intermediate_size", 5632, low=1, high=1 << 24)
    moe = replace(experts.hf_moe(config, sizes), shared_intermediate=shared)
    return experts.with_experts(spec, moe, experts.hf_sparse_layers(config, spec.layers))


def gguf_spec(meta: Metadata) -> ModelSpec:
    spec = decoder.gguf_decoder(meta, "qwen2_moe")
    used = max(1, meta.integer(".expert_used_count", 1))
    inner = meta.integer(".expert_feed_forward_length", spec.intermediate // used, low=1, high=1 << 24)
    shared = meta.integer(".expert_shared_feed_forward_length", spec.intermediate, low=1, high=1 << 24)
    moe = replace(experts.gguf_moe(meta, inner, renormalise=False), shared_intermediate=shared)
    return experts.with_experts(spec, moe)


def tensors(spec: ModelSpec) -> list[TensorRule]:
    rules = [decoder.embed_rule(spec)]
    for i in range(spec.layers):
        before_attention, before_mlp = decoder.pre_norm_rules(spec, i)
        rules += [before_attention, *decoder.attention_rules(spec, i), before_mlp]
        if spec.layer_specs[i].moe:
            rules += [*experts.expert_rules(spec, i, experts.QWEN), *experts.shared_rules(spec, i)]
        else:
            rules += decoder.mlp_rules(spec, i)
    return rules + decoder.end_rules(spec)


ARCHITECTURE = Architecture(
    name="qwen2_moe",
    hf_classes=("Qwen2MoeForCausalLM",),
    model_types=("qwen2_moe",),
    gguf_names=("qwen2moe",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=mixtral.forward,
)
