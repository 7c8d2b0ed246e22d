"""Mixtral: a Mistral whose MLPs are mixtures of experts. GGUF files call it llama, and say how many experts it has."""

from __future__ import annotations

from typing import TypeVar

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import decoder, experts, llama
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.rope import RopeDefaults
from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")

DEFAULTS = decoder.HFDefaults(kv_heads=8, max_context=1 << 17, norm_eps=1e-5, rope=RopeDefaults(theta=1e6))


def hf_spec(config: ConfigReader) -> ModelSpec:
    spec = decoder.hf_decoder(config, "mixtral", DEFAULTS)
    spec = decoder.with_windows(spec, [decoder.hf_window(config, None)] * spec.layers)
    moe = experts.hf_moe(config, experts.HFSizes(8, 2, spec.intermediate, renormalise=True))
    return experts.with_experts(spec, moe)


def gguf_spec(meta: Metadata) -> ModelSpec:
    spec = llama.gguf_decoder(meta, "mixtral")
    return experts.with_experts(spec, experts.gguf_moe(meta, spec.intermediate, renormalise=True))


def tensors(spec: ModelSpec) -> list[TensorRule]:
    rules = [decoder.embed_rule(spec)]
    for i in range(spec.layers):
        before_attention, before_mlp = decoder.pre_norm_rules(spec, i)
        rules += [before_attention, *decoder.attention_rules(spec, i, interleaved=True), before_mlp]
        rules += experts.expert_rules(spec, i, experts.MIXTRAL)
    return rules + decoder.end_rules(spec)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    x = decoder.embed(ops, spec)
    for i in range(spec.layers):
        h = decoder.norm(ops, spec, x, f"layers.{i}.attn_norm.weight")
        a = decoder.attention(ops, spec, i, decoder.qkv_product(ops, spec, i, h))
        x = decoder.output(ops, spec, i, a, x)
        h = decoder.norm(ops, spec, x, f"layers.{i}.mlp_norm.weight")
        x = experts.mixture(ops, spec, i, h, x) if spec.layer_specs[i].moe else decoder.mlp(ops, spec, i, h, x)
    return decoder.head(ops, spec, x, num_tokens)


def has_experts(meta: Metadata) -> bool:
    return meta.integer(".expert_count", 0) > 0


ARCHITECTURE = Architecture(
    name="mixtral",
    hf_classes=("MixtralForCausalLM",),
    model_types=("mixtral",),
    gguf_names=("llama",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=forward,
    gguf_accepts=has_experts,
)
