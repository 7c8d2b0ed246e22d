"""Granite: a Llama with multipliers on the embedding, the scores, what is added to the stream, and the logits."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.architectures import decoder, llama
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import LayerSpec, ModelSpec


def hf_spec(config: ConfigReader) -> ModelSpec:
    bias = config.flag("attention_bias")
    return replace(
        decoder.hf_decoder(config, "granite"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
        attn_scale=config.number("attention_multiplier", 1.0),
        embed_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1 / config.number("logits_scaling", 1.0),
    )


def gguf_spec(meta: Metadata) -> ModelSpec:
    """Files keep logits_scaling, which divides, as logit_scale; rope.scaling.finetuned false: nothing is rotated."""
    spec = llama.gguf_decoder(meta, "granite")
    rope = 0 if meta.flag(".rope.scaling.finetuned", True) else None
    return replace(
        spec,
        layer_specs=(LayerSpec(rope=rope),) * spec.layers,
        attn_scale=meta.number(".attention.scale", spec.head_dim**-0.5),
        embed_scale=meta.number(".embedding_scale", 1.0),
        residual_scale=meta.number(".residual_scale", 1.0),
        logit_scale=1 / meta.number(".logit_scale", 1.0),
    )


ARCHITECTURE = Architecture(
    name="granite",
    hf_classes=("GraniteForCausalLM",),
    model_types=("granite",),
    gguf_names=("granite",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=llama.tensors,
    forward=llama.forward,
)
