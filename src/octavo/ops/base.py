"""The op set: what a model may be written with, one signature an op.

A model is straight-line code on these methods, without control flow on data. A back end either computes at once
(`reference`: a value is an array) or records (`cpu`: a value is the number of a buffer, and the recorded program
is replayed every step). Weights are named by their canonical names (models/spec.py); a layer by its index in the model.

A row is a token of the step; after `gather_rows` it is a row that needs logits. There is no switch here: the back end
is chosen once, by `ExecutionConfig.backend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

V = TypeVar("V")


class UnsupportedOp(ValueError):
    """The model needs an op, or a form of one, that the chosen back end does not have."""


class SourceTensor(Protocol):
    """One tensor as it lies in a model file; `models.spec.Tensor` is one."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> memoryview: ...


class OpSet(Protocol[V]):
    """Every op of every model. Sizes come from the weights and from the pages."""

    def embed(self, weight: str, scale: float = 1.0) -> V:
        """The step's token ids as rows of `weight`, times `scale`."""
        ...

    def rms_norm(self, x: V, weight: str, eps: float, residual: V | None = None) -> V:
        """norm(x) as a product reads it; with a residual residual + norm(x), float rows.

        The residual's value is consumed: a back end may write the result over it.
        """
        ...

    def qk_norm(self, qkv: V, q_weight: str, k_weight: str, eps: float, layer: int, q_heads: int) -> V:
        """RMS norm of q and of k within qkv, float rows; v is kept. The value of qkv is consumed.

        A weight of head_dim values normalises each head, one of heads times head_dim values the whole of q or k.
        """
        ...

    def cast(self, x: V) -> V:
        """Float rows as a product reads them."""
        ...

    def linear(
        self,
        x: V,
        weights: Sequence[str],
        bias: Sequence[str] | None = None,
        residual: V | None = None,
        scale: float = 1.0,
    ) -> V:
        """The products with `weights` side by side, plus one bias a weight, times `scale`, plus the residual.

        The residual's value is consumed: a back end may write the result over it.
        """
        ...

    def rope_and_store(self, qkv: V, layer: int, q_heads: int, rope: int | None = 0) -> V:
        """Rotates q and k, writes k and v into the pages, returns q.

        rope: which of the model's tables; None rotates nothing. A table narrower than the head rotates the
        head's first dimensions.
        """
        ...

    def attention(
        self,
        q: V,
        layer: int,
        q_heads: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: str | None = None,
    ) -> V:
        """Causal attention over the pages, the step's own positions included. Heads side by side.

        window: a row sees its last `window` positions, itself among them. softcap: scores s become
        softcap tanh(s / softcap). sinks: a vector of one extra score a head, which takes probability and gives no
        value.
        """
        ...

    def silu_mul(self, x: V) -> V:
        """silu(left half) * right half."""
        ...

    def gelu_mul(self, x: V) -> V:
        """gelu(left half) * right half, tanh form ("gelu_pytorch_tanh")."""
        ...

    def moe(
        self,
        x: V,
        router: str,
        experts: Sequence[Sequence[str]],
        top_k: int,
        renormalise: bool,
        act: str,
        residual: V | None = None,
    ) -> V:
        """Each row through its top_k of the experts, each (gate, up, down); outputs summed in slot order.

        The residual is added last; its value is consumed.
        """
        ...

    def gated_add(self, x: V, gate: V, residual: V) -> V:
        """residual + sigmoid(gate) * x; gate has one column."""
        ...

    def hidden(self, x: V, weight: str, eps: float) -> V:
        """norm(x) of the rows whose hidden states the step is asked for, float rows in that order, for the caller."""
        ...

    def gather_rows(self, x: V) -> V:
        """Only the rows that need logits, in the order of the samples."""
        ...

    def logits(self, x: V, weight: str, scale: float = 1.0, softcap: float | None = None) -> V:
        """The product with `weight`, times `scale`; then each l becomes softcap tanh(l / softcap)."""
        ...

    def sample(self, logits: V, vocab: int) -> None:
        """Draws one id below `vocab` a row, as the step's samples say."""
        ...

    def all_reduce(self, x: V) -> V:
        """The sum over ranks, in rank order."""
        ...

    def all_gather(self, x: V) -> V:
        """The ranks' columns side by side."""
        ...

    def send(self, x: V, rank: int) -> None: ...

    def recv(self, columns: int, rank: int) -> V: ...

    def layer_written(self, layer: int) -> None:
        """Marks that the keys and values of `layer` are in the pages (layer-wise transfer waits for it)."""
        ...


class SampleRow(Protocol):
    """How to draw one row; lives as long as its request. `_native.Sample` is one."""

    position: int
    """Absolute position of the token drawn; set before each step."""
    given: int
    """-1: a token is drawn. Else it is this one, of which the log-probability and the rank are wanted."""

    def set_penalties(
        self,
        repetition: float,
        presence: float,
        frequency: float,
        prompt_counts: Any,
        output_counts: Any,
    ) -> None:
        """int32 [vocab] arrays that the caller updates in place; None where unused."""
        ...

    def set_bias(self, ids: Any, values: Any) -> None: ...
    def set_banned(self, ids: Any | None) -> None:
        """int32 ids that cannot be drawn; None clears."""
        ...

    def set_mask(self, mask: Any | None) -> None:
        """uint32 bits of allowed ids; None clears."""
        ...


Scored = tuple[int, float, list[int], list[float], int]
"""As `Drawn`, and the rank of a given token: 1 + how many come before it, ties by lowest id."""
Drawn = tuple[int, float, list[int], list[float]]
"""(token or -1, its logprob, top ids, top logprobs) of one sample."""
