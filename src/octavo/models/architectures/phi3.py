"""Phi-3 and Phi-4: q, k and v in one tensor, gate and up in another; part of a head rotated, longrope, a window."""

from __future__ import annotations

from typing import TypeVar

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import decoder
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.rope import RopeDefaults
from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")

DEFAULTS = decoder.HFDefaults(norm_eps=1e-5, max_context=4096, rope=RopeDefaults(original=4096), partial=True)
OLD_WINDOW = 2047
"""Of the models with 4096 positions, in GGUF files from before the key."""


def hf_spec(config: ConfigReader) -> ModelSpec:
    spec = decoder.hf_decoder(config, "phi3", DEFAULTS)
    return decoder.with_windows(spec, [decoder.hf_window(config, None)] * spec.layers)


def gguf_spec(meta: Metadata) -> ModelSpec:
    spec = decoder.gguf_decoder(meta, "phi3")
    old = OLD_WINDOW if spec.max_context == 4096 and spec.layers in (32, 40) else 0
    window = meta.integer(".attention.sliding_window", old) or None
    return decoder.with_windows(spec, [window] * spec.layers)


def tensors(spec: ModelSpec) -> list[TensorRule]:
    hidden, heads = spec.hidden, spec.heads * spec.head_dim
    qkv = heads + 2 * spec.kv_heads * spec.head_dim
    rules = [decoder.embed_rule(spec)]
    for i in range(spec.layers):
        before_attention, before_mlp = decoder.pre_norm_rules(spec, i)
        matrices = (
            ("attn.qkv.weight", (qkv, hidden), "self_attn.qkv_proj.weight", "attn_qkv.weight"),
            ("attn.o.weight", (hidden, heads), "self_attn.o_proj.weight", "attn_output.weight"),
            ("mlp.gate_up.weight", (2 * spec.intermediate, hidden), "mlp.gate_up_proj.weight", "ffn_up.weight"),
            ("mlp.down.weight", (hidden, spec.intermediate), "mlp.down_proj.weight", "ffn_down.weight"),
        )
        rules += [before_attention, before_mlp, *(decoder.layer_rule(i, *matrix) for matrix in matrices)]
    return rules + decoder.end_rules(spec)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    x = decoder.embed(ops, spec)
    for i in range(spec.layers):
        h = decoder.norm(ops, spec, x, f"layers.{i}.attn_norm.weight")
        qkv = ops.linear(h, [f"layers.{i}.attn.qkv.weight"])
        x = decoder.output(ops, spec, i, decoder.attention(ops, spec, i, qkv), x)
        h = decoder.norm(ops, spec, x, f"layers.{i}.mlp_norm.weight")
        x = decoder.mlp(ops, spec, i, h, x, fused=True)
    return decoder.head(ops, spec, x, num_tokens)


ARCHITECTURE = Architecture(
    name="phi3",
    hf_classes=("Phi3ForCausalLM",),
    model_types=("phi3",),
    gguf_names=("phi3",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=forward,
)
