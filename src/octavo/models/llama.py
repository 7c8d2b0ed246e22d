"""Llama: the forward pass on the op set. Also SmolLM2 and other models of the same architecture."""

from __future__ import annotations

from typing import TypeVar

from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    """One step. Returns the logits of the rows that need them; ids below `num_tokens` may be drawn."""
    scale = spec.head_dim**-0.5
    x = ops.embed("embed.weight")
    for i in range(spec.layers):
        attn, mlp = f"layers.{i}.attn", f"layers.{i}.mlp"

        h = ops.rms_norm(x, f"layers.{i}.attn_norm.weight", spec.norm_eps)
        qkv = ops.linear(h, _names(attn, "qkv", "weight"), _names(attn, "qkv", "bias") if spec.attn_bias else None)
        q = ops.rope_and_store(qkv, i, spec.heads)
        ops.layer_written(i)
        a = ops.attention(q, i, spec.heads, scale)
        x = ops.linear(a, [f"{attn}.o.weight"], [f"{attn}.o.bias"] if spec.attn_bias else None, residual=x)

        h = ops.rms_norm(x, f"layers.{i}.mlp_norm.weight", spec.norm_eps)
        both = [f"{mlp}.gate", f"{mlp}.up"]
        up = ops.linear(h, [f"{n}.weight" for n in both], [f"{n}.bias" for n in both] if spec.mlp_bias else None)
        h = ops.silu_mul(up)
        x = ops.linear(h, [f"{mlp}.down.weight"], [f"{mlp}.down.bias"] if spec.mlp_bias else None, residual=x)

    x = ops.rms_norm(ops.gather_rows(x), "norm.weight", spec.norm_eps)
    logits = ops.logits(x, "embed.weight" if spec.tied else "head.weight")
    ops.sample(logits, num_tokens)
    return logits


def _names(prefix: str, letters: str, suffix: str) -> list[str]:
    return [f"{prefix}.{letter}.{suffix}" for letter in letters]
