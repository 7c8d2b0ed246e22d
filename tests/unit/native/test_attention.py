"""Attention over pages: equal bits on every instruction set and for every division of the work, and right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo import _native
from tests.support import native
from tests.support.contract import attention_row
from tests.support.native import F32, batch, bits, program

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
        self.out = self.program.attention(self.q, 0, 0, self.q_heads, float(self.head_dim**-0.5))

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


def exact(q: F32, key: F32, value: F32, start: int) -> F32:
    """Attention of rows at start, start + 1, ... in double."""
    group, out = q.shape[1] // key.shape[1], np.zeros(q.shape)
    for r in range(len(q)):
        for h in range(q.shape[1]):
            k, v = (a[: start + r + 1, h // group].astype(np.float64) for a in (key, value))
            s = (k @ q[r, h].astype(np.float64)) * q.shape[2] ** -0.5
            p = np.exp(s - s.max())
            out[r, h] = p @ v / p.sum()
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


@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize("context", [1, 31, 32, 33, 511, 512, 513, 1500])
def test_every_context_is_right_and_equal_on_every_instruction_set(
    context: int, float32: bool, rng: np.random.Generator
) -> None:
    heads = (9, 3, 64)
    x, count = draw(rng, context, heads), min(context, 5)
    first = None
    for isa in ISAS:
        for threads in (1, 2, 3) if isa == FAST else (2,):
            a = Attention(isa, threads, heads, float32=float32, rows=context, positions=context)
            table = rng.permutation(a.blocks)[: -(-context // 32)].tolist()
            out = last_rows(a, x, count, table)
            want = exact(a.queries(count), *a.pages(table, context), context - count)
            np.testing.assert_allclose(out, want, rtol=0, atol=tolerance(float32))
            first = out if first is None else first
            np.testing.assert_array_equal(bits(out), bits(first))
            a.close()


@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize("heads", [(4, 1, 40), (9, 3, 64), (2, 2, 80), (5, 5, 96), (8, 2, 128), (40, 1, 16), (3, 1, 7)])
def test_every_head_shape_is_right(heads: tuple[int, int, int], float32: bool, rng: np.random.Generator) -> None:
    x, first = draw(rng, 70, heads), None
    for isa in ISAS:
        a = Attention(isa, 2, heads, float32=float32, rows=70, positions=70)
        out = a.step([x], [0], [[2, 0, 1]])[0]
        want = exact(a.queries(70), *a.pages([2, 0, 1], 70), 0)
        np.testing.assert_allclose(out, want, rtol=0, atol=tolerance(float32))
        first = out if first is None else first
        np.testing.assert_array_equal(bits(out), bits(first))
        a.close()


@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize(("context", "head_dim"), [(3, 40), (45, 16), (64, 64), (530, 40), (1030, 16)])
def test_the_bits_are_those_of_the_contract(
    context: int, head_dim: int, float32: bool, rng: np.random.Generator
) -> None:
    heads = (2, 1, head_dim)
    x = draw(rng, context, heads)
    a = Attention(FAST, 1, heads, float32=float32, rows=context, positions=context)
    table = list(range(-(-context // 32)))
    out = last_rows(a, x, 1, table)[0]
    key, value = a.pages(table, context)
    for h in range(2):
        want = attention_row(a.queries(1)[0, h], key[:, 0], value[:, 0], head_dim**-0.5, float32)
        np.testing.assert_array_equal(bits(out[h]), bits(want))
    a.close()


@pytest.mark.parametrize("naive", [False, True])
@pytest.mark.parametrize("float32", [False, True])
def test_chunks_blocks_threads_and_neighbours_change_no_bit(
    float32: bool, naive: bool, rng: np.random.Generator
) -> None:
    heads, n = (6, 2, 40), 600 if not naive else 150
    x, other = draw(rng, n, heads), draw(rng, 37, heads)
    outs = []
    for chunk, block_size, threads in ((n, 32, 1), (64, 64, 2), (7, 32, 3), (1, 1024, 2), (n, 1024, 3)):
        a = Attention(
            FAST, threads, heads, float32=float32, rows=n + 37, positions=1024, block_size=block_size, naive=naive
        )
        table = rng.permutation(a.blocks)[: -(-n // block_size)].tolist()
        spare = [next(b for b in range(a.blocks) if b not in table)] * 2
        out = []
        for start in range(0, n, chunk):
            rows = x[start : start + chunk]
            if start == 0 and len(spare) * block_size >= 37 and block_size > 32:
                out.append(a.step([other, rows], [0, 0], [spare, table])[1])
            else:
                out.append(a.step([rows], [start], [table])[0])
        outs.append(np.concatenate(out))
        a.close()
    for out in outs[1:]:
        np.testing.assert_array_equal(bits(out), bits(outs[0]))


@pytest.mark.parametrize("float32", [False, True])
def test_many_short_and_one_long_stream_decode_as_they_would_alone(float32: bool, rng: np.random.Generator) -> None:
    heads, contexts = (3, 1, 64), [1300, 1, 40, 33, 512, 700]
    a = Attention(FAST, 2, heads, float32=float32, rows=1300, positions=1300, blocks=90)
    free = rng.permutation(90).tolist()
    xs = [draw(rng, n, heads) for n in contexts]
    tables = [[free.pop() for _ in range(-(-n // 32))] for n in contexts]
    alone = [last_rows(a, x, 1, t) for x, t in zip(xs, tables, strict=True)]
    together = a.step([x[-1:] for x in xs], [n - 1 for n in contexts], tables)
    for one, many in zip(alone, together, strict=True):
        np.testing.assert_array_equal(bits(one), bits(many))
    a.close()


@pytest.mark.parametrize("naive", [False, True])
def test_not_a_number_in_other_pages_or_rows_harms_nobody(naive: bool, rng: np.random.Generator) -> None:
    heads = (4, 2, 64)
    x, bad = draw(rng, 50, heads), np.full((40, 8, 64), np.nan, np.float32)
    a = Attention(FAST, 2, heads, float32=False, rows=90, positions=64, naive=naive)
    clean = a.step([x], [0], [[3, 1]])[0]
    poisoned = a.step([bad, x], [0, 0], [[0, 2], [1, 3]])
    assert np.isnan(poisoned[0]).all()
    assert not np.isnan(clean).any()
    np.testing.assert_array_equal(bits(poisoned[1]), bits(clean))
    a.close()


@pytest.mark.parametrize("float32", [False, True])
def test_naive_attention_is_equal_within_a_tolerance(float32: bool, rng: np.random.Generator) -> None:
    heads, n = (9, 3, 64), 540
    x, outs = draw(rng, n, heads), []
    for naive in (False, True):
        for isa in ISAS:
            a = Attention(isa, 2, heads, float32=float32, rows=n, positions=n, naive=naive)
            outs.append(last_rows(a, x, 6, list(range(17))))
            a.close()
    np.testing.assert_allclose(outs[-1], outs[0], rtol=0, atol=2 * tolerance(float32))
    np.testing.assert_array_equal(bits(outs[-1]), bits(outs[-len(ISAS)]))
