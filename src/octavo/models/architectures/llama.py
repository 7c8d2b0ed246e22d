"""Llama 1 to 3, SmolLM2 and others of the class: pre-norm, rotary attention, gated MLP."""

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
    mlp_bias = config.flag("mlp_bias")
    return replace(decoder.hf_decoder(config, "llama"), qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)


def gguf_spec(meta: Metadata) -> ModelSpec:
    spec = decoder.gguf_decoder(meta, "llama")
    if len(spec.ropes[0].inverse_frequencies) != spec.head_dim // 2:
        raise meta.error(f"{meta.full('.rope.dimension_count')} must be the head size {spec.head_dim}")
    return spec


def tensors(spec: ModelSpec) -> list[TensorRule]:
    return decoder.decoder_rules(spec, interleaved=True)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    x = ops.embed("embed.weight")
    for i in range(spec.layers):
        h = ops.rms_norm(x, f"layers.{i}.attn_norm.weight", spec.norm_eps)
        a = decoder.attention(ops, spec, i, h)
        x = decoder.output(ops, spec, i, a, x)
        h = ops.rms_norm(x, f"layers.{i}.mlp_norm.weight", spec.norm_eps)
        x = decoder.mlp(ops, spec, i, h, x)
    return decoder.head(ops, spec, x, num_tokens)


ARCHITECTURE = Architecture(
    name="llama",
    hf_classes=("LlamaForCausalLM",),
    model_types=("llama",),
    gguf_names=("llama",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=forward,
)
