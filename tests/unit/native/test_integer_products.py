"""Products of quantised weights by integers: the contract of docs/numerics.md to the bit, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import _native
from octavo.ops.blocks import FORMATS
from tests.support.formats import QUANTISED, pack_rows, random_rows
from tests.support.native import F32, bits, program, rows_only, to_bf16
from tests.support.products import fma

ROWS = [1, 2, 3, 13, 129]


def every_isa() -> list[str]:
    found = list(_native.isas())
    return [*found, "amx-emulated"] if "avx2" in found else found


class Matrix:
    """Random rows of a quantised type, packed, and their codes and scales by other code."""

    def __init__(self, rng: np.random.Generator, source: str, n: int, k: int) -> None:
        raw = random_rows(rng, source, n, k, False)
        self.data = pack_rows(source, source.lower(), raw, n, k)
        self.weight = _native.Weight(self.data, 0, source.lower(), n, k)
        form = FORMATS[source]
        d, q, m = form.parts(raw.reshape(-1, form.nbytes))
        self.size = q.shape[2]
        self.q = q.reshape(n, k)
        self.d = np.broadcast_to(d, q.shape[:2]).reshape(n, -1)
        self.m = None if m is None else np.broadcast_to(m, q.shape[:2]).reshape(n, -1)


def product(x: F32, w: Matrix) -> F32:
    rows, k = x.shape
    out = np.zeros((rows, w.weight.n), np.float32)
    for t in range(0, k, 32):
        part = x[:, t : t + 32]
        most = np.abs(part).max(axis=1, keepdims=True)
        some = most >= np.float32(1e-30)
        inverse = np.divide(np.float32(127), most, where=some, out=np.zeros_like(most))
        codes = np.rint(part * inverse)
        scale = np.where(some, most / np.float32(127), np.float32(0))
        for h in range(0, 32, w.size):
            group = (t + h) // w.size
            q = codes[:, h : h + w.size]
            sums = (q.astype(np.int64) @ w.q[:, t + h : t + h + w.size].T.astype(np.int64)).astype(np.float32)
            out = fma(w.d[None, :, group], sums * scale, out)
            if w.m is not None:
                out = fma(w.m[None, :, group], scale * q.sum(axis=1, keepdims=True, dtype=np.float32), out)
    return out


def run(isa: str, threads: int, w: Matrix, x: F32, rows: list[int]) -> dict[int, F32]:
    p = program(isa, threads, rows=len(x), integer=True)
    src = p.input(w.weight.k, True)
    out = p.linear(src, [w.weight], None, None)
    found = {}
    for n in rows:
        p.write(src, x[:n])
        p.run(rows_only(n))
        found[n] = p.read(out, n)
    p.close()
    return found


def activations(rng: np.random.Generator, rows: int, k: int) -> F32:
    """Some groups are zero, and one value of some is far from the others."""
    x = rng.standard_normal((rows, k), dtype=np.float32)
    x[rng.random(x.shape) < 0.01] *= 300
    x.reshape(rows, -1, 32)[rng.random((rows, k // 32)) < 0.1] = 0
    x.reshape(rows, -1, 32)[rng.random((rows, k // 32)) < 0.05] *= np.float32(1e-33)
    return to_bf16(x)


@pytest.mark.parametrize("source", QUANTISED)
def test_products_follow_the_contract_on_every_instruction_set(source: str, rng: np.random.Generator) -> None:
    w = Matrix(rng, source, 53, 512)
    x = activations(rng, max(ROWS), 512)
    want = product(x, w)
    for isa in every_isa():
        for threads in (1, 2):
            for n, found in run(isa, threads, w, x, ROWS).items():
                np.testing.assert_array_equal(bits(found), bits(want[:n]), f"{isa}, {threads} threads, {n} rows")


@pytest.mark.parametrize("source", ["Q4_1", "Q8_0", "Q6_K"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_row_that_is_not_finite_is_nan_and_harms_no_other(
    source: str, value: float, rng: np.random.Generator
) -> None:
    w = Matrix(rng, source, 33, 256)
    x = activations(rng, 7, 256)
    spoilt = x.copy()
    spoilt[3, int(rng.integers(0, 256))] = value
    others = np.arange(7) != 3
    for isa in every_isa():
        found, clean = (run(isa, 2, w, rows, [7])[7] for rows in (spoilt, x))
        assert np.isnan(found[3]).all()
        np.testing.assert_array_equal(bits(found[others]), bits(clean[others]))


def test_integers_are_near_the_exact_product(rng: np.random.Generator) -> None:
    """Inputs keep 7 bits of the greatest of their 32."""
    w = Matrix(rng, "Q8_0", 64, 512)
    x = to_bf16(rng.standard_normal((5, 512), dtype=np.float32))
    values = w.q * np.repeat(w.d, 32, axis=1)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    found = run(_native.isas()[0], 1, w, x, [5])[5]
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()


def test_weights_side_by_side_of_different_kinds_share_one_source(rng: np.random.Generator) -> None:
    parts = [Matrix(rng, source, 48, 256) for source in ("Q4_K", "Q4_K", "Q6_K", "Q4_K")]
    x = activations(rng, 9, 256)
    want = np.concatenate([product(x, w) for w in parts], axis=1)
    for isa in every_isa():
        p = program(isa, 2, rows=9, integer=True)
        src = p.input(256, True)
        out = p.linear(src, [w.weight for w in parts], None, None)
        p.write(src, x)
        p.run(rows_only(9))
        np.testing.assert_array_equal(bits(p.read(out, 9)), bits(want))
        p.close()
