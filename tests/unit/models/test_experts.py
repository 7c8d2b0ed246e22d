"""Where files keep experts: one by one, fused or stacked, the canonical tensors are the same views."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from octavo.models.names import Found, Naming, match
from octavo.models.registry import rules_of
from octavo.models.spec import LayerSpec, ModelError, ModelSpec, MoeSpec, RopeSpec, Tensor

HIDDEN, INNER, SHARED, EXPERTS = 8, 6, 10, 3
Arrays = dict[str, np.ndarray]

SPEC = ModelSpec(
    architecture="qwen2_moe",
    hidden=HIDDEN,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=4,
    intermediate=12,
    vocab=11,
    max_context=64,
    norm_eps=1e-6,
    tied=True,
    ropes=(RopeSpec((1.0, 0.1)),),
    layer_specs=(LayerSpec(moe=True), LayerSpec()),
    qkv_bias=True,
    moe=MoeSpec(EXPERTS, 2, INNER, False, SHARED),
)


def canonical(spec: ModelSpec, rng: np.random.Generator) -> Arrays:
    return {rule.canonical: rng.standard_normal(rule.shape).astype(np.float32) for rule in rules_of(spec)}


def as_file(arrays: Arrays) -> tuple[dict[str, Found], list[Tensor]]:
    tensors = [
        Tensor(name, "F32", values.shape, np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        for name, values in arrays.items()
    ]
    return {tensor.name: Found("F32", tensor.shape) for tensor in tensors}, tensors


def read(spec: ModelSpec, arrays: Arrays, naming: Naming) -> tuple[Arrays, tuple[str, ...]]:
    found, tensors = as_file(arrays)
    matched = match("file", rules_of(spec), found, naming)
    wanted = matched.sources(found)
    got = {}
    for tensor in matched.map(iter(tensors)):
        assert wanted[tensor.name] == (tensor.source, tensor.shape)
        got[tensor.name] = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
    return got, matched.unknown


def stack(values: Arrays, part: str) -> np.ndarray:
    return np.stack([values[f"layers.0.moe.{e}.{part}.weight"] for e in range(EXPERTS)])


def one_by_one(spec: ModelSpec, values: Arrays, naming: Naming) -> Arrays:
    """By the rules' usual names; GGUF's usual ones are stacks, so that experts get their older names."""
    named = {}
    for rule in rules_of(spec):
        places = rule.gguf_places if naming == "gguf" else rule.hf_places
        name = rule.gguf if naming == "gguf" else rule.hf
        alone = [place.name for place in places if place.shape == rule.shape]
        named[alone[0] if alone else name] = values[rule.canonical]
    return named


SINGLE = re.compile(r"(model\.layers\.0\.\w+\.experts\.\d+\.\w+|blk\.0\.ffn_\w+\.\d+)\.weight")


def hf_fused(spec: ModelSpec, values: Arrays) -> Arrays:
    """As transformers has them in memory; the block is always called mlp there."""
    alone = one_by_one(spec, values, "hf").items()
    named = {name.replace("block_sparse_moe", "mlp"): array for name, array in alone if not SINGLE.fullmatch(name)}
    named["model.layers.0.mlp.experts.gate_up_proj"] = np.hstack([stack(values, part) for part in ("gate", "up")])
    named["model.layers.0.mlp.experts.down_proj"] = stack(values, "down")
    return named


def gguf_stacked(spec: ModelSpec, values: Arrays) -> Arrays:
    alone = one_by_one(spec, values, "gguf").items()
    named = {name: array for name, array in alone if not SINGLE.fullmatch(name)}
    vector = "blk.0.ffn_gate_inp_shexp.weight"
    named |= {vector: named[vector][0]} if vector in named else {}
    return named | {f"blk.0.ffn_{part}_exps.weight": stack(values, part) for part in ("gate", "up", "down")}


def spellings(spec: ModelSpec, values: Arrays) -> dict[str, tuple[Arrays, Naming]]:
    bare = {name.removeprefix("model."): array for name, array in hf_fused(spec, values).items()}
    return {
        "one by one": (one_by_one(spec, values, "hf"), "hf"),
        "fused": (hf_fused(spec, values), "hf"),
        "fused, a base model": (bare, "hf"),
        "stacked in GGUF": (gguf_stacked(spec, values), "gguf"),
        "one by one in GGUF": (one_by_one(spec, values, "gguf"), "gguf"),
    }


@pytest.mark.parametrize("architecture", ["qwen2_moe", "qwen3_moe", "mixtral"])
def test_every_spelling_gives_the_same_tensors(architecture: str) -> None:
    rng = np.random.default_rng(7)
    assert SPEC.moe is not None
    shared = SHARED if architecture == "qwen2_moe" else None
    spec = replace(SPEC, architecture=architecture, moe=replace(SPEC.moe, shared_intermediate=shared))
    if architecture == "mixtral":
        spec = replace(spec, layers=1, layer_specs=spec.layer_specs[:1], qkv_bias=False)
    values = canonical(spec, rng)
    for spelling, (arrays, naming) in spellings(spec, values).items():
        got, unknown = read(spec, arrays, naming)
        assert unknown == (), spelling
        assert got.keys() == values.keys(), spelling
        for name, array in values.items():
            if naming == "gguf" and architecture == "mixtral" and name.endswith(("attn.q.weight", "attn.k.weight")):
                continue  # rows in rotation pairs
            np.testing.assert_array_equal(got[name], array, err_msg=f"{spelling}: {name}")


def test_a_missing_expert_and_a_wrong_stack_are_named() -> None:
    values = canonical(SPEC, np.random.default_rng(7))
    alone = one_by_one(SPEC, values, "hf")
    del alone["model.layers.0.mlp.experts.2.up_proj.weight"]
    with pytest.raises(ModelError, match=r"experts\.2\.up_proj\.weight"):
        read(SPEC, alone, "hf")
    stacked = gguf_stacked(SPEC, values)
    stacked["blk.0.ffn_up_exps.weight"] = stacked["blk.0.ffn_up_exps.weight"][:2]
    with pytest.raises(ModelError, match=r"ffn_up_exps\.weight has shape \[2, 6, 8\].*\[3, 6, 8\]"):
        read(SPEC, stacked, "gguf")
