"""The op set on arrays: computes at once, for the batch given to `begin`.

Owns the pages and the last step's draws. Life: made once a model; `begin(batch)`, the model's forward pass, then
`drawn`, `last_logits` and `last_hidden`. Off switch: `ExecutionConfig.backend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from octavo.ops.base import Drawn, UnsupportedOp
from octavo.ops.numeric import F32, I32, round_bf16
from octavo.ops.reference import functions as fn
from octavo.ops.reference.moe import Choice, gated_add, moe
from octavo.ops.reference.sampler import ReferenceSample, draw


class Pages:
    """Keys and values of one group: [block, layer, position, KV head, dim], rounded on the bf16 path."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        self.block_size = block_size
        shape = (num_blocks, layers, block_size, kv_heads, head_dim)
        self.key = np.zeros(shape, np.float32)
        self.value = np.zeros(shape, np.float32)

    def store(self, layer: int, table: I32, positions: I32, key: F32, value: F32) -> None:
        blocks, offsets = (
            table[positions // self.block_size],
            positions % self.block_size,
        )
        self.key[blocks, layer, offsets] = key
        self.value[blocks, layer, offsets] = value

    def load(self, layer: int, table: I32, first: int, end: int) -> tuple[F32, F32]:
        """Positions [first, end) in order."""
        skipped = first // self.block_size
        blocks = table[skipped : -(-end // self.block_size)]
        key, value = self.key[blocks, layer], self.value[blocks, layer]
        part = slice(first - skipped * self.block_size, end - skipped * self.block_size)
        return key.reshape(-1, *key.shape[2:])[part], value.reshape(-1, *value.shape[2:])[part]


@dataclass(frozen=True)
class ReferenceBatch:
    """One step's inputs, as `_native.Batch` takes them."""

    tokens: I32
    seqs: I32
    """[n, 4] of (row, count, start, store_from)."""
    tables: Sequence[I32]
    logit_rows: I32
    samples: Sequence[ReferenceSample]
    hidden_rows: I32 | None = None
    """None: no row's."""


@dataclass(frozen=True)
class Numerics:
    """Constants of every step."""

    rounded: bool
    naive_attention: bool
    ropes: Sequence[tuple[F32, F32]]
    """cos and sin [positions, rotary / 2] of each of the model's tables."""


class ReferenceOps:
    """See `ops.base.OpSet`; values are float32 arrays [rows, columns]."""

    def __init__(
        self,
        weights: Mapping[str, F32],
        pages: Sequence[Pages],
        layer_groups: Sequence[tuple[int, int]],
        numerics: Numerics,
    ) -> None:
        """layer_groups: (group, index within the group) of each layer."""
        self._weights = weights
        self._pages = pages
        self._layers = layer_groups
        self._numerics = numerics
        self._batch: ReferenceBatch
        self.last_logits: F32
        self.last_hidden: F32
        self.drawn: list[Drawn] = []

    def begin(self, batch: ReferenceBatch) -> None:
        self._batch = batch
        self.drawn = []

    def embed(self, weight: str, scale: float = 1.0) -> F32:
        rows = self._weights[weight][self._batch.tokens]
        return rows if scale == 1 else rows * np.float32(scale)

    def rms_norm(self, x: F32, weight: str, eps: float, residual: F32 | None = None) -> F32:
        return fn.rms_norm(x, self._weights[weight], eps, self._numerics.rounded, residual)

    def qk_norm(self, qkv: F32, q_weight: str, k_weight: str, eps: float, layer: int, q_heads: int) -> F32:
        pages = self._pages[self._layers[layer][0]]
        kv_heads, dim = pages.key.shape[3], pages.key.shape[4]
        q, k, v = np.split(qkv, [q_heads * dim, (q_heads + kv_heads) * dim], axis=1)
        q, k = fn.part_norm(q, self._weights[q_weight], eps), fn.part_norm(k, self._weights[k_weight], eps)
        return np.concatenate((q, k, v), axis=1)

    def cast(self, x: F32) -> F32:
        return round_bf16(x) if self._numerics.rounded else x

    def linear(
        self,
        x: F32,
        weights: Sequence[str],
        bias: Sequence[str] | None = None,
        residual: F32 | None = None,
        scale: float = 1.0,
    ) -> F32:
        parts = [fn.linear(x, self._weights[name]) for name in weights]
        y = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        if bias is not None:
            y = y + np.concatenate([self._weights[name] for name in bias])
        if scale != 1:
            y = y * np.float32(scale)
        return y if residual is None else residual + y

    def rope_and_store(self, qkv: F32, layer: int, q_heads: int, rope: int | None = 0) -> F32:
        group, index = self._layers[layer]
        pages, angles = self._pages[group], None if rope is None else self._numerics.ropes[rope]
        kv_heads, dim = pages.key.shape[3], pages.key.shape[4]
        heads = qkv.reshape(len(qkv), q_heads + 2 * kv_heads, dim)
        turned = np.empty_like(heads)
        for (row, count, start, store_from), table in zip(self._batch.seqs, self._batch.tables[group], strict=True):
            rows = slice(row, row + count)
            positions = np.arange(start, start + count, dtype=np.int32)
            both = heads[rows, : q_heads + kv_heads]
            if angles is not None:
                both = fn.rope(both, angles[0][positions], angles[1][positions])
            turned[rows] = np.concatenate((both, heads[rows, q_heads + kv_heads :]), axis=1)
            if self._numerics.rounded:
                turned[rows] = round_bf16(turned[rows])
            stored = positions >= store_from
            key, value = (
                turned[rows, q_heads : q_heads + kv_heads],
                turned[rows, q_heads + kv_heads :],
            )
            pages.store(index, table, positions[stored], key[stored], value[stored])
        return turned[:, :q_heads]

    def attention(
        self,
        q: F32,
        layer: int,
        q_heads: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: str | None = None,
    ) -> F32:
        group, index = self._layers[layer]
        attend = fn.attention_naive if self._numerics.naive_attention else fn.attention_tiled
        out = np.empty((len(q), q_heads * q.shape[-1]), np.float32)
        for (row, count, start, _), table in zip(self._batch.seqs, self._batch.tables[group], strict=True):
            # Pages behind the window may belong to others by now.
            first = 0 if window is None else max(0, start - window + 1) // fn.TILE * fn.TILE
            key, value = self._pages[group].load(index, table, first, start + count)
            rows = slice(row, row + count)
            view = fn.View(scale, window, softcap, None if sinks is None else self._weights[sinks], first)
            out[rows] = attend(q[rows], key, value, view, self._numerics.rounded)
        return out

    def silu_mul(self, x: F32) -> F32:
        return fn.silu_mul(x, self._numerics.rounded)

    def gelu_mul(self, x: F32) -> F32:
        return fn.gelu_mul(x, self._numerics.rounded)

    def hidden(self, x: F32, weight: str, eps: float) -> F32:
        rows = self._batch.hidden_rows
        wanted = x[:0] if rows is None else x[rows]
        self.last_hidden = fn.rms_norm(wanted, self._weights[weight], eps, False)
        return self.last_hidden

    def gather_rows(self, x: F32) -> F32:
        return x[self._batch.logit_rows]

    def logits(self, x: F32, weight: str, scale: float = 1.0, softcap: float | None = None) -> F32:
        y = fn.linear(x, self._weights[weight], scale=scale)
        self.last_logits = y if softcap is None else fn.soft_cap(y, softcap)
        return self.last_logits

    def sample(self, logits: F32, vocab: int) -> None:
        self.drawn = [draw(row[:vocab], sample) for row, sample in zip(logits, self._batch.samples, strict=False)]

    def layer_written(self, layer: int) -> None:
        """Nobody waits: a step here is over before anyone can look."""

    def moe(
        self,
        x: F32,
        router: str,
        experts: Sequence[Sequence[str]],
        top_k: int,
        renormalise: bool,
        act: str,
        residual: F32 | None = None,
    ) -> F32:
        weights = self._weights
        triples = [[weights[name] for name in expert] for expert in experts]
        choice = Choice(top_k, renormalise, act)
        y = moe(x, weights[router], triples, choice, self._numerics.rounded)
        return y if residual is None else residual + y

    def gated_add(self, x: F32, gate: F32, residual: F32) -> F32:
        return gated_add(x, gate, residual)

    def all_reduce(self, x: F32) -> F32:
        return x

    def all_gather(self, x: F32) -> F32:
        return x

    def send(self, x: F32, rank: int) -> None:
        _unsupported("send")

    def recv(self, columns: int, rank: int) -> F32:
        _unsupported("recv")


def _unsupported(op: str) -> NoReturn:
    raise UnsupportedOp(f"the reference back end has no {op}")
