"""Tensor names: canonical to GGUF and to Hugging Face, and the shape each must have.

Owns the one list of what a Llama checkpoint must hold. A name outside it is reported as a warning, unless it is
known to carry no weights (tables of rotary frequencies that are computed from the configuration).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from octavo.models.spec import ModelError, ModelSpec

_GGUF_LAYER = {
    "attn_norm.weight": "attn_norm.weight",
    "attn.q.weight": "attn_q.weight",
    "attn.k.weight": "attn_k.weight",
    "attn.v.weight": "attn_v.weight",
    "attn.o.weight": "attn_output.weight",
    "attn.q.bias": "attn_q.bias",
    "attn.k.bias": "attn_k.bias",
    "attn.v.bias": "attn_v.bias",
    "attn.o.bias": "attn_output.bias",
    "mlp_norm.weight": "ffn_norm.weight",
    "mlp.gate.weight": "ffn_gate.weight",
    "mlp.up.weight": "ffn_up.weight",
    "mlp.down.weight": "ffn_down.weight",
    "mlp.gate.bias": "ffn_gate.bias",
    "mlp.up.bias": "ffn_up.bias",
    "mlp.down.bias": "ffn_down.bias",
}
_HF_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn.q.weight": "self_attn.q_proj.weight",
    "attn.k.weight": "self_attn.k_proj.weight",
    "attn.v.weight": "self_attn.v_proj.weight",
    "attn.o.weight": "self_attn.o_proj.weight",
    "attn.q.bias": "self_attn.q_proj.bias",
    "attn.k.bias": "self_attn.k_proj.bias",
    "attn.v.bias": "self_attn.v_proj.bias",
    "attn.o.bias": "self_attn.o_proj.bias",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
    "mlp.gate.bias": "mlp.gate_proj.bias",
    "mlp.up.bias": "mlp.up_proj.bias",
    "mlp.down.bias": "mlp.down_proj.bias",
}
_GGUF_TOP = {"embed.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "head.weight": "output.weight"}
_HF_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}

_HARMLESS = re.compile(r"(rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight|.*rotary_emb\.inv_freq)")


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape, in the order of the forward pass."""
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    matrices = {
        "attn.q": (q, spec.hidden, spec.attn_bias),
        "attn.k": (kv, spec.hidden, spec.attn_bias),
        "attn.v": (kv, spec.hidden, spec.attn_bias),
        "attn.o": (spec.hidden, q, spec.attn_bias),
        "mlp.gate": (spec.intermediate, spec.hidden, spec.mlp_bias),
        "mlp.up": (spec.intermediate, spec.hidden, spec.mlp_bias),
        "mlp.down": (spec.hidden, spec.intermediate, spec.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab, spec.hidden)}
    for i in range(spec.layers):
        shapes[f"layers.{i}.attn_norm.weight"] = (spec.hidden,)
        shapes[f"layers.{i}.mlp_norm.weight"] = (spec.hidden,)
        for part, (rows, columns, bias) in matrices.items():
            shapes[f"layers.{i}.{part}.weight"] = (rows, columns)
            if bias:
                shapes[f"layers.{i}.{part}.bias"] = (rows,)
    shapes["norm.weight"] = (spec.hidden,)
    if not spec.tied:
        shapes["head.weight"] = (spec.vocab, spec.hidden)
    return shapes


def gguf_name(canonical: str) -> str:
    """The name a GGUF file gives a canonical tensor."""
    return _file_name(canonical, _GGUF_TOP, _GGUF_LAYER, "blk.")


def hf_name(canonical: str) -> str:
    """The name a Hugging Face file gives a canonical tensor."""
    return _file_name(canonical, _HF_TOP, _HF_LAYER, "model.layers.")


def _file_name(canonical: str, top: Mapping[str, str], layer: Mapping[str, str], prefix: str) -> str:
    if canonical in top:
        return top[canonical]
    _, index, rest = canonical.split(".", 2)
    return f"{prefix}{index}.{layer[rest]}"


def is_harmless(file_name: str) -> bool:
    """Whether a tensor outside the list is known to carry nothing that the configuration does not."""
    return _HARMLESS.fullmatch(file_name) is not None


@dataclass(frozen=True)
class Found:
    """A tensor of a file, before it is matched with a canonical name."""

    source: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Matched:
    """What a file holds of a spec."""

    names: dict[str, str]
    """Canonical name -> name in the file, in the order of the forward pass."""
    unknown: tuple[str, ...]
    """Names in the file that nothing reads."""


def match(where: str, spec: ModelSpec, found: Mapping[str, Found], naming: str) -> Matched:
    """Matches a file's tensors with the spec; ModelError names what is missing or has a wrong shape.

    `naming` is "gguf" or "hf". A stored head beside a tied embedding is left to the caller, which knows the data.
    """
    to_file = gguf_name if naming == "gguf" else hf_name
    names = {canonical: to_file(canonical) for canonical in expected_shapes(spec)}
    missing = [name for name in names.values() if name not in found]
    if missing:
        raise ModelError(f"{where} lacks {_listed(missing)}; the model's files are incomplete or of another model")
    for canonical, shape in expected_shapes(spec).items():
        has = found[names[canonical]].shape
        if has != shape:
            raise ModelError(
                f"{where}: tensor {names[canonical]} has shape {list(has)}, the configuration says {list(shape)}"
            )
    known = set(names.values()) | {to_file("head.weight")}
    unknown = tuple(name for name in found if name not in known and not is_harmless(name))
    return Matched(names, unknown)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    noun = "tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {shown}" + (" and others" if len(names) > 3 else "")
