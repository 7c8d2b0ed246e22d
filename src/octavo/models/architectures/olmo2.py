"""OLMo 2: norms after attention and MLP instead of before them, and one norm over all of q and all of k."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import decoder
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")


def hf_spec(config: ConfigReader) -> ModelSpec:
    bias = config.flag("attention_bias")
    spec = decoder.hf_decoder(config, "olmo2", decoder.HFDefaults(norm_eps=1e-5))
    return replace(spec, qkv_bias=bias, o_bias=bias)


def gguf_spec(meta: Metadata) -> ModelSpec:
    return decoder.gguf_decoder(meta, "olmo2")


def tensors(spec: ModelSpec) -> list[TensorRule]:
    rules = [decoder.embed_rule(spec)]
    for i in range(spec.layers):
        after_attention, after_mlp = decoder.post_norm_rules(spec, i, "post_attention_layernorm")
        rules += [*decoder.attention_rules(spec, i), *decoder.qk_norm_rules(spec, i, whole_row=True), after_attention]
        rules += [*decoder.mlp_rules(spec, i), after_mlp]
    return rules + decoder.end_rules(spec)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    x = decoder.embed(ops, spec)
    for i in range(spec.layers):
        qkv = decoder.qk_norm(ops, spec, i, decoder.qkv_product(ops, spec, i, ops.cast(x)))
        y = decoder.output(ops, spec, i, decoder.attention(ops, spec, i, qkv))
        x = decoder.norm(ops, spec, y, f"layers.{i}.attn_post_norm.weight", x)
        y = decoder.mlp(ops, spec, i, ops.cast(x))
        x = decoder.norm(ops, spec, y, f"layers.{i}.mlp_post_norm.weight", x)
    return decoder.head(ops, spec, x, num_tokens)


ARCHITECTURE = Architecture(
    name="olmo2",
    hf_classes=("Olmo2ForCausalLM",),
    model_types=("olmo2",),
    gguf_names=("olmo2",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=forward,
)
