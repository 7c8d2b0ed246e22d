"""The op set as a recorder: each call appends a segment to the native program, once; a value is a buffer's number.

Off switch: `ExecutionConfig.program` runs the recorded ops one native call each; `backend` picks the reference instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from octavo import _native
from octavo.ops.base import UnsupportedOp
from octavo.ops.cpu.packing import Arena


class CpuOps:
    """See `ops.base.OpSet`."""

    def __init__(
        self,
        program: _native.Program,
        arena: Arena,
        layer_groups: Sequence[tuple[int, int]],
    ) -> None:
        """layer_groups: (group, index within the group) of each layer."""
        self._program = program
        self._arena = arena
        self._layers = layer_groups
        self.hidden_rows: int | None = None
        """The buffer of `hidden`, once it is recorded."""

    def embed(self, weight: str, scale: float = 1.0) -> int:
        return self._program.embed(self._arena.weight(weight), scale)

    def rms_norm(self, x: int, weight: str, eps: float, residual: int | None = None) -> int:
        return self._program.rms_norm(x, self._arena.weight(weight), eps, residual)

    def qk_norm(self, qkv: int, q_weight: str, k_weight: str, eps: float, layer: int, q_heads: int) -> int:
        group, index = self._layers[layer]
        q, k = self._arena.weight(q_weight), self._arena.weight(k_weight)
        return self._program.qk_norm(qkv, group, index, q_heads, q, k, eps)

    def cast(self, x: int) -> int:
        return self._program.cast(x)

    def linear(
        self,
        x: int,
        weights: Sequence[str],
        bias: Sequence[str] | None = None,
        residual: int | None = None,
        scale: float = 1.0,
    ) -> int:
        joined = None if bias is None else self._arena.vector(bias)
        return self._program.linear(x, [self._arena.weight(name) for name in weights], joined, residual, scale)

    def rope_and_store(self, qkv: int, layer: int, q_heads: int, rope: int | None = 0) -> int:
        group, index = self._layers[layer]
        return self._program.rope_and_store(qkv, group, index, q_heads, rope)

    def attention(
        self,
        q: int,
        layer: int,
        q_heads: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: str | None = None,
    ) -> int:
        group, index = self._layers[layer]
        extra = None if sinks is None else self._arena.weight(sinks)
        return self._program.attention(q, group, index, q_heads, scale, window, softcap, extra)

    def silu_mul(self, x: int) -> int:
        return self._program.activate(x, "silu")

    def gelu_mul(self, x: int) -> int:
        return self._program.activate(x, "gelu")

    def hidden(self, x: int, weight: str, eps: float) -> int:
        self.hidden_rows = self._program.hidden(x, self._arena.weight(weight), eps)
        return self.hidden_rows

    def gather_rows(self, x: int) -> int:
        return self._program.gather_rows(x)

    def logits(self, x: int, weight: str, scale: float = 1.0, softcap: float | None = None) -> int:
        return self._program.logits(x, self._arena.weight(weight), scale, softcap)

    def sample(self, logits: int, vocab: int) -> None:
        self._program.sample(logits, vocab)

    def layer_written(self, layer: int) -> None:
        self._program.layer_written(layer)

    def moe(
        self,
        x: int,
        router: str,
        experts: Sequence[Sequence[str]],
        top_k: int,
        renormalise: bool,
        act: str,
        residual: int | None = None,
    ) -> int:
        weight = self._arena.weight
        triples = [[weight(name) for name in expert] for expert in experts]
        return self._program.moe(x, weight(router), triples, top_k, renormalise, act, residual)

    def gated_add(self, x: int, gate: int, residual: int) -> int:
        return self._program.gated_add(x, gate, residual)

    def all_reduce(self, x: int) -> int:
        return x

    def all_gather(self, x: int) -> int:
        return x

    def send(self, x: int, rank: int) -> None:
        _unsupported("send")

    def recv(self, columns: int, rank: int) -> int:
        _unsupported("recv")


def _unsupported(op: str) -> NoReturn:
    raise UnsupportedOp(f"the cpu back end has no {op}")
