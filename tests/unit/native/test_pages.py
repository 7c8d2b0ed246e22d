"""Rotation and the store into pages: layout, equal bits, and nothing left of an earlier owner."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import _native
from tests.support.native import F32, ISAS, batch, bits, program, rope_tables, to_bf16

Seqs = list[tuple[int, int, int, int]]


def rotated(x: F32, positions: np.ndarray, rotary: int) -> F32:
    """x: [rows, heads, head_dim]."""
    cos, sin = (t[positions][:, None, :].astype(np.float64) for t in rope_tables(256, rotary))
    half = rotary // 2
    a, b = x[..., :half].astype(np.float64), x[..., half:rotary].astype(np.float64)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., rotary:]], axis=-1).astype(np.float32)


class Store:
    """One rope_and_store over a pool of 8 blocks."""

    def __init__(self, isa: str, threads: int, head_dim: int, rotary: int, float32: bool, block_size: int = 32) -> None:
        self.heads, self.kv_heads, self.head_dim, self.float32 = 4, 2, head_dim, float32
        self.pool = _native.KVPool(8, block_size, 2, self.kv_heads, head_dim, float32)
        self.program = program(isa, threads, rows=128, positions=256, float32=float32, pools=[self.pool], rotary=rotary)
        self.src = self.program.input((self.heads + 2 * self.kv_heads) * head_dim, False)
        self.q = self.program.rope_and_store(self.src, 0, 1, self.heads)
        self.block_size = block_size

    def run(self, x: F32, seqs: Seqs, tables: list[list[int]]) -> F32:
        """x: [rows, all heads, head_dim]. Returns q, [rows, heads, head_dim]."""
        self.program.write(self.src, x.reshape(len(x), -1))
        self.program.run(batch([0] * len(x), seqs, [tables]))
        q = self.program.read(self.q, len(x)).reshape(len(x), self.heads, -1)
        assert not q[..., self.head_dim :].any()
        return q[..., : self.head_dim]

    def block(self, block: int, layer: int = 1) -> tuple[F32, F32]:
        shape = (self.block_size, self.kv_heads, self.head_dim)
        key, value = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self.pool.read(layer, block, key, value)
        return key, value


@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary"), [(40, 40), (64, 64), (80, 80), (96, 96), (80, 32), (7, 6), (64, 20)])
def test_queries_are_rotated_and_keys_and_values_stored(
    head_dim: int, rotary: int, float32: bool, rng: np.random.Generator
) -> None:
    # Three sequences: a whole prompt over three blocks, one decoding row, a chunk that starts within a tile.
    seqs = [(0, 70, 0, 0), (70, 1, 33, 0), (71, 20, 5, 0)]
    tables = [[6, 1, 3], [0, 7, 0], [4, 0, 0]]
    x = rng.standard_normal((91, 8, head_dim), dtype=np.float32)
    positions = np.concatenate([np.arange(start, start + count) for _, count, start, _ in seqs])
    expected = rotated(x[:, :6], positions, rotary)
    tolerance = 2e-6 if float32 else 2.0**-8
    first = None
    for isa in ISAS:
        for threads in (1, 2, 3):
            store = Store(isa, threads, head_dim, rotary, float32)
            q = store.run(x, seqs, tables)
            np.testing.assert_allclose(q, expected[:, :4], rtol=tolerance, atol=2e-6 if float32 else 1e-2)
            pages = np.stack([np.stack(store.block(b)) for b in range(8)])
            for (row, count, start, _), table in zip(seqs, tables, strict=True):
                for r in range(count):
                    block, at = table[(start + r) // 32], (start + r) % 32
                    key, value = pages[block, :, at]
                    np.testing.assert_allclose(key, expected[row + r, 4:], rtol=tolerance, atol=1e-2)
                    exact = x[row + r, 6:] if float32 else to_bf16(x[row + r, 6:])
                    np.testing.assert_array_equal(value, exact)
            np.testing.assert_array_equal(np.stack(store.block(6, layer=0)), 0)
            now = (bits(q), bits(pages))
            first = first or now
            assert (now[0] == first[0]).all() and (now[1] == first[1]).all()
            store.program.close()


def test_a_tile_is_cleared_when_its_first_position_is_written(rng: np.random.Generator) -> None:
    for isa in ISAS:
        for float32 in (False, True):
            store = Store(isa, 2, 40, 40, float32)
            store.pool.fill(float("nan"))
            x = rng.standard_normal((70, 8, 40), dtype=np.float32)
            store.run(x[:35], [(0, 35, 0, 0)], [[2, 5]])
            for block, used in ((2, 32), (5, 3)):
                for part in store.block(block):
                    assert np.isfinite(part).all()
                    assert not part[used:].any()
            assert np.isnan(store.block(3)[0]).all()
            # Positions that follow in the same tile keep what is there.
            before = store.block(5)[1][:3]
            store.run(x[35:36], [(0, 1, 35, 0)], [[2, 5]])
            np.testing.assert_array_equal(store.block(5)[1][:3], before)
            store.program.close()


def test_positions_below_store_from_are_rotated_but_not_stored(rng: np.random.Generator) -> None:
    for isa in ISAS:
        store = Store(isa, 2, 64, 64, False)
        x = rng.standard_normal((40, 8, 64), dtype=np.float32)
        full = store.run(x, [(0, 40, 0, 0)], [[1, 2]])
        kept = [store.block(1), store.block(2)]
        other = x.copy()
        other[:, 4:] += 1
        again = store.run(other, [(0, 40, 0, 32)], [[1, 2]])
        np.testing.assert_array_equal(again, full)
        np.testing.assert_array_equal(np.stack(store.block(1)), np.stack(kept[0]))
        np.testing.assert_array_equal(store.block(2)[1][:8], to_bf16(other[32:, 6:]))
        store.program.close()


def test_blocks_of_several_tiles_hold_their_positions_in_order(rng: np.random.Generator) -> None:
    x = rng.standard_normal((100, 8, 40), dtype=np.float32)
    for isa in ISAS:
        store = Store(isa, 3, 40, 40, False, block_size=96)
        store.run(x, [(0, 100, 0, 0)], [[7, 0]])
        value = np.concatenate([store.block(7)[1], store.block(0)[1]])[:100]
        np.testing.assert_array_equal(value, to_bf16(x[:, 6:]))
        store.program.close()


def test_a_row_is_stored_equal_whatever_else_the_step_holds(rng: np.random.Generator) -> None:
    x = rng.standard_normal((50, 8, 80), dtype=np.float32)
    whole, pieces = Store(ISAS[0], 2, 80, 80, False), Store(ISAS[-1], 1, 80, 80, False)
    whole.run(x, [(0, 50, 0, 0)], [[0, 1]])
    at = 0
    while at < 50:
        count = min(int(rng.integers(1, 9)), 50 - at)
        pieces.run(x[at : at + count], [(0, count, at, 0)], [[0, 1]])
        at += count
    for block in (0, 1):
        np.testing.assert_array_equal(bits(np.stack(whole.block(block))), bits(np.stack(pieces.block(block))))


def test_bytes_of_a_pool_are_what_the_tokens_need() -> None:
    for float32 in (False, True):
        pool = _native.KVPool(4, 64, 3, 2, 40, float32)
        assert pool.bytes == 4 * 64 * _native.KVPool.bytes_per_token(3, 2, 40, float32)
    # bf16: keys padded to 64 dimensions, values to 48.
    assert _native.KVPool.bytes_per_token(1, 1, 40, False) == 2 * (64 + 48)
    assert _native.KVPool.bytes_per_token(1, 1, 40, True) == 4 * (40 + 40)


@pytest.mark.parametrize(
    "sizes",
    [(0, 32, 1, 1, 64), (1, 31, 1, 1, 64), (1, 0, 1, 1, 64), (1, 32, 0, 1, 64), (1, 32, 1, 0, 64), (1, 32, 1, 1, 0)],
)
def test_impossible_pools_are_refused(sizes: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        _native.KVPool(*sizes, False)


def test_reading_outside_a_pool_is_refused() -> None:
    pool = _native.KVPool(2, 32, 1, 1, 8, False)
    key, value = np.empty((32, 1, 8), np.float32), np.empty((32, 1, 8), np.float32)
    for layer, block in ((1, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(ValueError, match="outside the pool"):
            pool.read(layer, block, key, value)
    with pytest.raises(ValueError, match="bytes"):
        pool.read(0, 0, key[:31], value)
