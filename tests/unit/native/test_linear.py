"""Products with packed weights: the contract of docs/numerics.md to the bit, on every instruction set.

AMX code runs on every machine with AVX2 as "amx-emulated", whose tiles are emulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from octavo import _native
from tests.support.native import F32, bits, program, rows_only, to_bf16, vector
from tests.support.products import Packed, packed, product_bf16, product_f32

KINDS = ["bf16", "q8_0", "q4_1", "f32"]
ROWS = [1, 2, 3, 5, 6, 7, 12, 13, 16, 17, 33, 100]
SHAPES = [(1, 32), (15, 64), (16, 32), (17, 576), (100, 64)]
ODD_DEPTHS = [(17, 40), (33, 1)]


@cache
def all_isas() -> tuple[str, ...]:
    found = tuple(_native.isas())
    return (*found, "amx-emulated") if "avx2" in found else found


def activations(rng: np.random.Generator, rows: int, k: int, float32: bool) -> F32:
    x = rng.standard_normal((rows, k), dtype=np.float32)
    return x if float32 else to_bf16(x)


class Product:
    """One recorded product: source buffer of k columns, weights side by side, optional bias and residual."""

    def __init__(
        self, isa: str, threads: int, weights: Sequence[Packed], float32: bool, bias: F32 | None = None, rows: int = 100
    ) -> None:
        self.program = program(isa, threads, rows=rows, float32=float32)
        self.src = self.program.input(weights[0].weight.k, not float32)
        self.out = self.program.linear(
            self.src, [w.weight for w in weights], None if bias is None else vector(bias), None
        )

    def __call__(self, x: F32) -> F32:
        self.program.write(self.src, x)
        self.program.run(rows_only(len(x)))
        return self.program.read(self.out, len(x))


def products(weights: Sequence[Packed], float32: bool, threads: Sequence[int] = (1, 2, 3)) -> Iterator[Product]:
    for isa in all_isas():
        for count in threads:
            p = Product(isa, count, weights, float32)
            yield p
            p.program.close()


def expected(x: F32, w: Packed, float32: bool) -> F32:
    return product_f32(x, w.exact) if float32 else product_bf16(x, w.rounded)


def check_contract(kind: str, n: int, k: int, float32: bool, rng: np.random.Generator) -> None:
    w = packed(rng, kind, n, k)
    x = activations(rng, 100, k, float32)
    want = expected(x, w, float32)
    for product in products([w], float32):
        for rows in ROWS:
            np.testing.assert_array_equal(bits(product(x[:rows])), bits(want[:rows]))
    exact = x.astype(np.float64) @ (w.exact if float32 else w.rounded).astype(np.float64).T
    bound = np.abs(x).astype(np.float64) @ np.abs(w.exact).astype(np.float64).T
    assert (np.abs(want - exact) <= 1e-6 * bound + 1e-9).all()


@pytest.mark.parametrize("float32", [False, True], ids=["bf16_path", "float32_path"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_products_follow_the_contract_to_the_bit(
    n: int, k: int, kind: str, float32: bool, rng: np.random.Generator
) -> None:
    check_contract(kind, n, k, float32, rng)


@pytest.mark.parametrize("float32", [False, True], ids=["bf16_path", "float32_path"])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize(("n", "k"), ODD_DEPTHS)
def test_depths_that_fill_no_tile_are_padded_with_zeros(
    n: int, k: int, kind: str, float32: bool, rng: np.random.Generator
) -> None:
    check_contract(kind, n, k, float32, rng)


@pytest.mark.parametrize("float32", [False, True], ids=["bf16_path", "float32_path"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_has_the_bits_it_has_among_many(kind: str, float32: bool, rng: np.random.Generator) -> None:
    w = packed(rng, kind, 40, 96)
    x = activations(rng, 300, 96, float32)
    for isa in all_isas():
        product = Product(isa, 2, [w], float32, rows=300)
        together = product(x)
        for row in rng.integers(0, 300, 12):
            np.testing.assert_array_equal(bits(product(x[row : row + 1])), bits(together[row : row + 1]))
        np.testing.assert_array_equal(bits(product(x[250:])), bits(together[250:]))
        product.program.close()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_not_finite_harms_no_other(kind: str, value: float, rng: np.random.Generator) -> None:
    w = packed(rng, kind, 33, 64)
    x = activations(rng, 35, 64, False)
    bad = int(rng.integers(0, 35))
    spoilt = x.copy()
    spoilt[bad, int(rng.integers(0, 64))] = value
    others = np.arange(35) != bad
    for product in products([w], False, threads=(2,)):
        found, clean = product(spoilt), product(x)
        np.testing.assert_array_equal(bits(found[others]), bits(clean[others]))
        assert not np.isfinite(found[bad]).any()


@pytest.mark.parametrize("float32", [False, True], ids=["bf16_path", "float32_path"])
def test_fused_weights_of_different_kinds_lie_side_by_side_with_their_bias(
    float32: bool, rng: np.random.Generator
) -> None:
    weights = [packed(rng, kind, n, 64) for kind, n in zip(["q4_1", "bf16", "q8_0"], [17, 5, 48], strict=True)]
    bias = rng.standard_normal(70, dtype=np.float32)
    x = activations(rng, 21, 64, float32)
    want = np.concatenate([expected(x, w, float32) for w in weights], axis=1) + bias
    for isa in all_isas():
        for threads in (1, 3):
            product = Product(isa, threads, weights, float32, bias)
            np.testing.assert_array_equal(bits(product(x)), bits(want))
            product.program.close()


@pytest.mark.parametrize("rows", [1, 4, 19, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_residual_is_added_last_and_written_over(kind: str, rows: int, rng: np.random.Generator) -> None:
    n, k = 44, 96
    w = packed(rng, kind, n, k)
    bias = rng.standard_normal(n, dtype=np.float32)
    x, residual = activations(rng, rows, k, False), rng.standard_normal((rows, n), dtype=np.float32)
    want = residual + (expected(x, w, False) + bias)
    for isa in all_isas():
        p = program(isa, 2, rows=100)
        src, stream = p.input(k, True), p.input(n, False)
        assert p.linear(src, [w.weight], vector(bias), stream) == stream
        p.write(src, x)
        p.write(stream, residual)
        p.run(rows_only(rows))
        np.testing.assert_array_equal(bits(p.read(stream, rows)), bits(want))
        p.close()


@pytest.mark.parametrize("float32", [False, True], ids=["bf16_path", "float32_path"])
def test_values_near_the_smallest_float_flush_alike_everywhere(float32: bool, rng: np.random.Generator) -> None:
    n, k = 20, 96
    w = packed(rng, "f32", n, k)
    tiny = np.ldexp(w.exact, -60).astype(np.float32)
    data = np.zeros(_native.packed_bytes("f32", n, k), np.uint8)
    _native.pack("F32", "f32", n, k, tiny, data)
    small = Packed(_native.Weight(data, 0, "f32", n, k), data, to_bf16(tiny), tiny)
    x = activations(rng, 18, k, float32) * np.float32(2.0**-62)
    found = [product(x) for product in products([small], float32, threads=(1,))]
    for other in found[1:]:
        np.testing.assert_array_equal(bits(other), bits(found[0]))
    magnitude = np.abs(found[0])
    assert ((magnitude == 0) | (magnitude >= np.finfo(np.float32).tiny)).all()
