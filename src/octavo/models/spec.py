"""What a model is, independent of the file it came in: sizes, and the interface of an opened checkpoint.

Canonical tensor names (matrices are [out, in], row-major; rotary q and k rows in half-split order, as in
Hugging Face files; GGUF's interleaved order is undone by the reader):

    embed.weight                       [vocab, hidden]
    layers.{i}.attn_norm.weight        [hidden]
    layers.{i}.attn.{q,k,v,o}.weight   and .bias where the architecture has them
    layers.{i}.attn.qkv.weight         instead of q, k, v where the files store them fused
    layers.{i}.attn.{q,k}_norm.weight  [head_dim], or [heads * head_dim] where the whole row is normed
    layers.{i}.attn_post_norm.weight   [hidden], of the attention's output
    layers.{i}.mlp_norm.weight         [hidden]
    layers.{i}.mlp.{gate,up,down}.weight
    layers.{i}.mlp.gate_up.weight      instead of gate, up where the files store them fused
    layers.{i}.mlp_post_norm.weight    [hidden], of the MLP's output
    layers.{i}.moe.router.weight       [experts, hidden]
    layers.{i}.moe.{e}.{gate,up,down}.weight
    layers.{i}.moe.shared.{gate,up,down}.weight, layers.{i}.moe.shared_gate.weight [1, hidden]
    norm.weight                        [hidden]
    head.weight                        [vocab, hidden]; absent where tied to embed.weight
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from octavo.types import SamplingDefaults


class RopeScaling(Protocol):
    """A rotary embedding whose frequencies depend on the context that the engine serves (dynamic, longrope)."""

    def at(self, context: int) -> RopeSpec:
        """The one set of frequencies for an engine that serves `context` positions."""
        ...


@dataclass(frozen=True)
class RopeSpec:
    """A rotary embedding; every kind of scaling reduces to this."""

    inverse_frequencies: tuple[float, ...]
    """One a pair, rotated dimensions / 2 of them: the angle is position times value."""
    scale: float = 1.0
    """Multiplies cos and sin (yarn, longrope)."""
    kind: str = "default"
    longest: int = 0
    """Positions that the scaling is meant for, where the configuration's own number may be that of pretraining."""
    scaling: RopeScaling | None = None
    """Where the values depend on the engine's context: what gives them for another one."""


@dataclass(frozen=True)
class LayerSpec:
    """How one layer differs from another."""

    window: int | None = None
    """A position sees itself and the window - 1 before it; None: all."""
    rope: int | None = 0
    """Index into ModelSpec.ropes; None: no rotation."""
    moe: bool = False


@dataclass(frozen=True)
class MoeSpec:
    """Sizes of the mixture of experts."""

    experts: int
    top_k: int
    intermediate: int
    renormalise: bool
    """The chosen experts' probabilities are divided by their sum."""
    shared_intermediate: int | None = None
    """The shared expert that every row passes, with its sigmoid gate."""


@dataclass(frozen=True)
class ModelSpec:
    """Sizes and constants of a decoder-only transformer."""

    architecture: str
    """Name in `models.registry`."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context: int
    norm_eps: float
    tied: bool
    """The output head is the embedding."""
    ropes: tuple[RopeSpec, ...]
    layer_specs: tuple[LayerSpec, ...]
    act: Literal["silu", "gelu"] = "silu"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    attn_scale: float | None = None
    """Multiplies the scores; None: head_dim ** -0.5."""
    attn_softcap: float | None = None
    logit_softcap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    """Multiplies the logits (Granite's logits_scaling divides: its reciprocal)."""
    moe: MoeSpec | None = None

    def __post_init__(self) -> None:
        assert len(self.layer_specs) == self.layers, "one LayerSpec a layer"
        assert all(layer.rope is None or layer.rope < len(self.ropes) for layer in self.layer_specs)

    @property
    def score_scale(self) -> float:
        """What multiplies a dot product of query and key."""
        return self.head_dim**-0.5 if self.attn_scale is None else self.attn_scale

    def at_context(self, context: int) -> ModelSpec:
        """The same model with the rotary frequencies of an engine that serves `context` positions."""
        ropes = tuple(rope if rope.scaling is None else rope.scaling.at(context) for rope in self.ropes)
        return replace(self, ropes=ropes)


@dataclass(frozen=True)
class Tensor:
    """One tensor as it lies in the file."""

    name: str
    """Canonical; in the file's own words before `names.Matched.map`."""
    source: str
    """The type, in GGUF's words: "F32", "F16", "BF16", "Q8_0", "Q4_1" and so on."""
    shape: tuple[int, ...]
    data: memoryview
    """Rows of the source format, contiguous (a view of the mapped file, or a reordered copy)."""


class ModelError(ValueError):
    """A model that cannot be served; the message is one sentence for the user that names the file or tensor.

    Names come from files that nobody vouches for: the message is kept short and printable here, for all of them.
    """

    def __init__(self, message: str) -> None:
        text = "".join(character if character.isprintable() else "?" for character in message[:1000])
        super().__init__(text if len(message) <= 1000 else text[:-3] + "...")


class Checkpoint(Protocol):
    """An opened model: a GGUF file, or a directory with safetensors."""

    name: str
    spec: ModelSpec
    eos_token_ids: tuple[int, ...]
    num_tokens: int
    """Ids that the tokeniser knows."""
    total_bytes: int
    """Bytes of tensor data, for progress."""
    notes: tuple[str, ...]
    """What a user should know of how the file's weights were changed on the way, a sentence each."""

    def sampling(self) -> SamplingDefaults:
        """What the model's makers suggest for drawing answers."""
        ...

    def weights_id(self) -> str:
        """Digest of the content (cached by size, mtime, inode and ctime)."""
        ...

    def tokenizer_id(self) -> str:
        """Digest of the tokeniser's files; empty where `weights_id` covers them."""
        ...

    def sources(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Canonical name -> (source type, shape), checked: nothing missing, shapes right (else ModelError)."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, one at a time, in the order of the file."""
        ...

    def close(self) -> None: ...
