"""Qwen3: a Llama whose heads of q and k are normed before they are rotated."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import decoder, qwen2
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")

DEFAULTS = decoder.HFDefaults(kv_heads=32, head_dim=128, max_context=32768)


def hf_spec(config: ConfigReader) -> ModelSpec:
    bias = config.flag("attention_bias")
    spec = decoder.hf_decoder(config, "qwen3", DEFAULTS)
    return qwen2.hf_windowed(config, replace(spec, qkv_bias=bias, o_bias=bias))


def gguf_spec(meta: Metadata) -> ModelSpec:
    return decoder.gguf_decoder(meta, "qwen3")


def tensors(spec: ModelSpec) -> list[TensorRule]:
    return decoder.decoder_rules(spec, qk_norm=True)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    x = decoder.embed(ops, spec)
    for i in range(spec.layers):
        h = decoder.norm(ops, spec, x, f"layers.{i}.attn_norm.weight")
        qkv = decoder.qk_norm(ops, spec, i, decoder.qkv_product(ops, spec, i, h))
        x = decoder.output(ops, spec, i, decoder.attention(ops, spec, i, qkv), x)
        h = decoder.norm(ops, spec, x, f"layers.{i}.mlp_norm.weight")
        x = decoder.mlp(ops, spec, i, h, x)
    return decoder.head(ops, spec, x, num_tokens)


ARCHITECTURE = Architecture(
    name="qwen3",
    hf_classes=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    gguf_names=("qwen3",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=forward,
)
