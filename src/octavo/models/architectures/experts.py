"""What the mixtures of experts share: their settings, the names of their tensors, the sparse half of a layer.

Owns no architecture. Settings that only training uses (auxiliary losses, the router's jitter) are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from octavo.models.architecture import Place, TensorRule
from octavo.models.architectures import decoder
from octavo.models.config_reader import ConfigReader, short
from octavo.models.metadata import Metadata
from octavo.models.spec import LayerSpec, ModelSpec, MoeSpec
from octavo.ops.base import OpSet

V = TypeVar("V")

MOST_EXPERTS = 4096
_PARTS = ("gate", "up", "down")
_GGUF_NEUTRAL: Mapping[str, tuple[int, ...]] = {
    ".expert_gating_func": (0, 1),
    ".expert_weights_scale": (0, 1),
    ".expert_group_count": (0, 1),
    ".expert_group_used_count": (0, 1),
    ".leading_dense_block_count": (0,),
}
"""Settings of other mixtures -> the values that mean what these do (softmax over all experts, every layer sparse)."""


# --- Settings -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HFSizes:
    """What a class assumes where config.json says nothing."""

    experts: int
    top_k: int
    intermediate: int
    renormalise: bool


def hf_moe(config: ConfigReader, sizes: HFSizes) -> MoeSpec:
    """Experts and how many a row uses; the number of experts has two names in files of one class."""
    given = [key for key in ("num_experts", "num_local_experts") if config.has(key)]
    counts = [config.integer(key, low=2, high=MOST_EXPERTS) for key in given]
    if len(set(counts)) > 1:
        raise config.error(f"num_experts is {counts[0]} and num_local_experts {counts[1]}; they must be equal")
    experts = counts[0] if counts else sizes.experts
    return MoeSpec(
        experts=experts,
        top_k=config.integer("num_experts_per_tok", sizes.top_k, low=1, high=experts),
        intermediate=sizes.intermediate,
        renormalise=sizes.renormalise,
    )


def hf_sparse_layers(config: ConfigReader, layers: int) -> list[bool]:
    """Which layers have experts: each decoder_sparse_step-th, but for those that mlp_only_layers names."""
    step = config.integer("decoder_sparse_step", 1, low=1, high=1 << 12)
    dense = config.values.get("mlp_only_layers")
    if dense is not None and not (isinstance(dense, list) and all(type(i) is int for i in dense)):
        raise config.wrong("mlp_only_layers", "a list of layer numbers")
    return [(i + 1) % step == 0 and i not in (dense or []) for i in range(layers)]


def hf_optional_window(config: ConfigReader) -> int | None:
    """sliding_window where use_sliding_window is on; where it is off, whatever stands there means nothing."""
    config.has("sliding_window")
    return decoder.hf_window(config, 4096) if config.flag("use_sliding_window") else None


def gguf_moe(meta: Metadata, intermediate: int, renormalise: bool) -> MoeSpec:
    for key, neutral in _GGUF_NEUTRAL.items():
        value = meta.values.get(meta.full(key), 0)
        if not isinstance(value, (int, float, str)) or value not in neutral:
            raise meta.error(
                f"metadata key {meta.full(key)} is {short(value)}, which is not supported; supported: {neutral}"
            )
    experts = meta.integer(".expert_count", low=2, high=MOST_EXPERTS)
    return MoeSpec(
        experts=experts,
        top_k=meta.integer(".expert_used_count", low=1, high=experts),
        intermediate=intermediate,
        renormalise=meta.flag(".expert_weights_norm", renormalise),
    )


def with_experts(spec: ModelSpec, moe: MoeSpec, sparse: Sequence[bool] | None = None) -> ModelSpec:
    """The model with experts in the layers that `sparse` says (None: in all)."""
    wanted = [True] * spec.layers if sparse is None else sparse
    layers: list[LayerSpec] = [replace(one, moe=has) for one, has in zip(spec.layer_specs, wanted, strict=True)]
    return replace(spec, moe=moe, layer_specs=tuple(layers))


# --- Tensors ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HFNames:
    """How a class names its experts."""

    block: str
    """Where the router and the single experts lie within a layer."""
    gate: str
    up: str
    down: str


QWEN = HFNames("mlp", "gate_proj", "up_proj", "down_proj")
MIXTRAL = HFNames("block_sparse_moe", "w1", "w3", "w2")


def expert_rules(spec: ModelSpec, i: int, names: HFNames) -> list[TensorRule]:
    """The router and all experts of layer i.

    Hugging Face files keep experts one by one, or gate and up of all of them in one tensor and down in another (as
    transformers has them in memory); GGUF files keep each part of all experts stacked, or, when old, one by one.
    """
    assert spec.moe is not None
    moe, hf, gguf = spec.moe, f"model.layers.{i}", f"blk.{i}"
    wide = (moe.intermediate, spec.hidden)
    shapes = {"gate": wide, "up": wide, "down": wide[::-1]}
    stored = {"gate": names.gate, "up": names.up, "down": names.down}
    router = (moe.experts, spec.hidden)
    routers = tuple(Place(f"{hf}.{block}.gate.weight", router) for block in dict.fromkeys((names.block, "mlp")))
    rules = [
        TensorRule(f"layers.{i}.moe.router.weight", router, routers[0].name, f"{gguf}.ffn_gate_inp.weight",
                   hf_places=routers)
    ]  # fmt: skip
    for e in range(moe.experts):
        for part in _PARTS:
            shape = shapes[part]
            single = Place(f"{hf}.{names.block}.experts.{e}.{stored[part]}.weight", shape)
            stack = Place(f"{gguf}.ffn_{part}_exps.weight", (moe.experts, *shape), e)
            rules.append(
                TensorRule(
                    f"layers.{i}.moe.{e}.{part}.weight",
                    shape,
                    single.name,
                    stack.name,
                    hf_places=(single, _fused(spec, i, e, part)),
                    gguf_places=(stack, Place(f"{gguf}.ffn_{part}.{e}.weight", shape)),
                )
            )
    return rules


def _fused(spec: ModelSpec, i: int, e: int, part: str) -> Place:
    """In the two tensors of all experts; gate and up are halves of one."""
    assert spec.moe is not None
    count, inner, prefix = spec.moe.experts, spec.moe.intermediate, f"model.layers.{i}.mlp.experts"
    if part == "down":
        return Place(f"{prefix}.down_proj", (count, spec.hidden, inner), e)
    return Place(f"{prefix}.gate_up_proj", (count, 2 * inner, spec.hidden), 2 * e + _PARTS.index(part))


def shared_rules(spec: ModelSpec, i: int) -> list[TensorRule]:
    """The expert that every row passes, and its gate, which GGUF files keep as a vector."""
    assert spec.moe is not None and spec.moe.shared_intermediate is not None
    wide = (spec.moe.shared_intermediate, spec.hidden)
    shapes = {"gate": wide, "up": wide, "down": wide[::-1]}
    rules = []
    for part, shape in shapes.items():
        names = (f"mlp.shared_expert.{part}_proj.weight", f"ffn_{part}_shexp.weight")
        rules.append(decoder.layer_rule(i, f"moe.shared.{part}.weight", shape, *names))
    gate = f"blk.{i}.ffn_gate_inp_shexp.weight"
    places = (Place(gate, (spec.hidden,)), Place(gate, (1, spec.hidden)))
    rules.append(
        TensorRule(f"layers.{i}.moe.shared_gate.weight", (1, spec.hidden),
                   f"model.layers.{i}.mlp.shared_expert_gate.weight", gate, gguf_places=places)
    )  # fmt: skip
    return rules


# --- Forward pass --------------------------------------------------------------------------------------


def mixture(ops: OpSet[V], spec: ModelSpec, i: int, h: V, x: V) -> V:
    """The experts of layer i over the normed rows h, and the shared one where there is one, added to the stream x."""
    assert spec.moe is not None
    moe, part = spec.moe, f"layers.{i}.moe"
    triples = [[f"{part}.{e}.{name}.weight" for name in _PARTS] for e in range(moe.experts)]
    x = ops.moe(h, f"{part}.router.weight", triples, moe.top_k, moe.renormalise, spec.act, residual=x)
    if moe.shared_intermediate is None:
        return x
    both = ops.linear(h, [f"{part}.shared.gate.weight", f"{part}.shared.up.weight"])
    inner = ops.silu_mul(both) if spec.act == "silu" else ops.gelu_mul(both)
    shared = ops.linear(inner, [f"{part}.shared.down.weight"])
    return ops.gated_add(shared, ops.linear(h, [f"{part}.shared_gate.weight"]), x)
