"""Rotation, store and attention over one pool, driven step by step; and attention in double."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo import _native
from tests.support import native
from tests.support.native import F32, batch, program, vector

# AMX code runs on every machine with AVX2 as "amx-emulated".
ISAS = [*native.ISAS, "amx-emulated"] if "avx2" in native.ISAS else native.ISAS
FAST = ISAS[0]


class Attention:
    """rope_and_store and attention over one pool, whose pages start full of NaN."""

    def __init__(
        self,
        isa: str,
        threads: int,
        heads: tuple[int, int, int],
        *,
        float32: bool,
        rows: int,
        positions: int,
        block_size: int = 32,
        blocks: int = 0,
        naive: bool = False,
        window: int | None = None,
        softcap: float | None = None,
        sinks: F32 | None = None,
    ) -> None:
        """heads: query heads, KV heads, head size."""
        self.q_heads, self.kv_heads, self.head_dim = heads
        self.block_size, self.blocks = block_size, blocks or -(-positions // block_size) + 2
        self.pool = _native.KVPool(self.blocks, block_size, 1, self.kv_heads, self.head_dim, float32)
        self.pool.fill(float("nan"))
        self.program = program(
            isa, threads, rows=rows, positions=positions, float32=float32, naive=naive, pools=[self.pool], rotary=2
        )
        self.src = self.program.input((self.q_heads + 2 * self.kv_heads) * self.head_dim, False)
        self.q = self.program.rope_and_store(self.src, 0, 0, self.q_heads)
        extra = None if sinks is None else vector(sinks)
        scale = float(self.head_dim**-0.5)
        self.out = self.program.attention(self.q, 0, 0, self.q_heads, scale, window, softcap, extra)

    def step(
        self, x: Sequence[F32], starts: Sequence[int], tables: Sequence[Sequence[int]], store_only: bool = False
    ) -> list[F32]:
        """x: [rows, heads, head_dim] of each sequence, from position `starts`. Returns each one's output."""
        counts = [len(rows) for rows in x]
        firsts = np.cumsum([0, *counts[:-1]])
        seqs = [(int(f), n, s, 0) for f, n, s in zip(firsts, counts, starts, strict=True)]
        wide = max(len(t) for t in tables)
        b = batch([0] * sum(counts), seqs, [[[*t, *[0] * (wide - len(t))] for t in tables]])
        self.program.write(self.src, np.concatenate(x).reshape(sum(counts), -1))
        if store_only:
            self.program.run_op(0, b)
            return []
        self.program.run(b)
        out = self.program.read(self.out, sum(counts)).reshape(sum(counts), self.q_heads, self.head_dim)
        return np.split(out, firsts[1:])

    def queries(self, rows: int) -> F32:
        q: F32 = self.program.read(self.q, rows).reshape(rows, self.q_heads, -1)[..., : self.head_dim]
        return q

    def pages(self, table: Sequence[int], n: int) -> tuple[F32, F32]:
        shape = (len(table), self.block_size, self.kv_heads, self.head_dim)
        key, value = np.empty(shape, np.float32), np.empty(shape, np.float32)
        for i, block in enumerate(table):
            self.pool.read(0, block, key[i], value[i])
        return tuple(a.reshape(-1, self.kv_heads, self.head_dim)[:n] for a in (key, value))  # type: ignore[return-value]

    def close(self) -> None:
        self.program.close()


def draw(rng: np.random.Generator, n: int, heads: tuple[int, int, int]) -> F32:
    x = rng.standard_normal((n, heads[0] + 2 * heads[1], heads[2]), dtype=np.float32)
    x[:, : heads[0]] *= 2
    return x


def exact(
    q: F32,
    key: F32,
    value: F32,
    start: int,
    window: int | None = None,
    softcap: float | None = None,
    sinks: F32 | None = None,
) -> F32:
    """Attention of rows at start, start + 1, ... in double."""
    group, out = q.shape[1] // key.shape[1], np.zeros(q.shape)
    for r in range(len(q)):
        for h in range(q.shape[1]):
            first = 0 if window is None else max(0, start + r - window + 1)
            k, v = (a[first : start + r + 1, h // group].astype(np.float64) for a in (key, value))
            s = (k @ q[r, h].astype(np.float64)) * q.shape[2] ** -0.5
            s = s if softcap is None else softcap * np.tanh(s / softcap)
            p = np.exp(s - s.max())
            out[r, h] = p @ v / (p.sum() + (0 if sinks is None else np.exp(sinks[h] - s.max())))
    return out.astype(np.float32)


def last_rows(a: Attention, x: F32, count: int, table: Sequence[int]) -> F32:
    """The output of the last `count` rows, all positions before them stored first."""
    before = len(x) - count
    if before:
        a.step([x[:before]], [0], [table], store_only=True)
    return a.step([x[before:]], [before], [table])[0]


def tolerance(float32: bool) -> float:
    """Values are about normal, so outputs stay below about 4: half a unit of bf16 there, and p rounded to bf16."""
    return 2e-5 if float32 else 2.5e-2
