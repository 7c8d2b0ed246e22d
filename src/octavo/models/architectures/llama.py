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


def gguf_decoder(meta: Metadata, name: str) -> ModelSpec:
    """Of the architectures whose files keep q and k in rotation pairs, which are then pairs of the whole head."""
    spec = decoder.gguf_decoder(meta, name)
    if len(spec.ropes[0].inverse_frequencies) != spec.head_dim // 2:
        raise meta.error(f"{meta.full('.rope.dimension_count')} must be the head size {spec.head_dim}")
    return spec


def gguf_spec(meta: Metadata) -> ModelSpec:
    """Mistral's files are of this architecture too; a window that they name holds on all layers."""
    spec = gguf_decoder(meta, "llama")
    window = meta.integer(".attention.sliding_window", 0) or None
    return decoder.with_windows(spec, [window] * spec.layers)


def tensors(spec: ModelSpec) -> list[TensorRule]:
    return decoder.decoder_rules(spec, interleaved=True)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    x = decoder.embed(ops, spec)
    for i in range(spec.layers):
        h = decoder.norm(ops, spec, x, f"layers.{i}.attn_norm.weight")
        a = decoder.attention(ops, spec, i, decoder.qkv_product(ops, spec, i, h))
        x = decoder.output(ops, spec, i, a, x)
        h = decoder.norm(ops, spec, x, f"layers.{i}.mlp_norm.weight")
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
