"""The ops beside the products: equal bits on every instruction set and thread count, and right values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from octavo import _native
from tests.support.native import F32, ISAS, bits, matrix, program, rows_only, to_bf16, vector

ROWS = [0, 1, 3, 17]
COLS = [1, 16, 31, 40, 100, 576]
THREADS = [1, 2, 3]

Record = Callable[[_native.Program, int], int]


def outputs(x: F32, float32: bool, record: Record) -> list[F32]:
    """The op's output for input x on every instruction set and number of threads."""
    found = []
    for isa in ISAS:
        for threads in THREADS:
            p = program(isa, threads, float32=float32)
            src = p.input(x.shape[1], False)
            out = record(p, src)
            p.write(src, x)
            p.run(rows_only(x.shape[0]))
            found.append(p.read(out, x.shape[0]))
            p.close()
    return found


def check(found: list[F32], expected: F32, float32: bool) -> None:
    for other in found[1:]:
        np.testing.assert_array_equal(bits(other), bits(found[0]))
    tolerance = 3e-6 if float32 else 2.0**-8
    np.testing.assert_allclose(found[0], expected, rtol=tolerance, atol=1e-6)
    if not float32:
        np.testing.assert_array_equal(bits(found[0]) & 0xFFFF, 0)


@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize("cols", COLS)
def test_rms_norm_is_right_and_equal_everywhere(cols: int, float32: bool, rng: np.random.Generator) -> None:
    weight = rng.uniform(-2, 2, cols).astype(np.float32)
    for rows in ROWS:
        x = rng.standard_normal((rows, cols), dtype=np.float32) * 10
        found = outputs(x, float32, lambda p, src: p.rms_norm(src, vector(weight), 1e-5))
        mean = (x.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
        check(found, (x / np.sqrt(mean + 1e-5) * weight).astype(np.float32), float32)


def test_rms_norm_sums_in_sixteen_lanes_and_a_fixed_tree(rng: np.random.Generator) -> None:
    # 16 columns: one product a lane, so the tree alone decides the bits and NumPy can repeat it.
    x = rng.standard_normal((5, 16), dtype=np.float32)
    s = x * x
    for n in (8, 4, 2, 1):
        s = s[:, :n] + s[:, n : 2 * n]
    inverse = np.float32(1) / np.sqrt(s / np.float32(16) + np.float32(1e-5))
    one = vector(np.ones(16, np.float32))
    for found in outputs(x, True, lambda p, src: p.rms_norm(src, one, 1e-5)):
        np.testing.assert_array_equal(bits(found), bits(x * inverse))


def activation(x: F32, act: str) -> F32:
    g, u = np.split(x.astype(np.float64), 2, axis=1)
    if act == "gelu":
        y = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    else:
        y = g / (1 + np.exp(-g))
    return (y * u).astype(np.float32)


@pytest.mark.parametrize("act", ["silu", "gelu"])
@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize("cols", [1, 24, 100, 600])
def test_gated_activations_are_right_and_equal_everywhere(
    cols: int, float32: bool, act: str, rng: np.random.Generator
) -> None:
    for rows in ROWS:
        x = rng.standard_normal((rows, 2 * cols), dtype=np.float32) * 5
        check(outputs(x, float32, lambda p, src: p.activate(src, act)), activation(x, act), float32)


def test_activations_of_extreme_gates_are_their_limits() -> None:
    gates = np.array([-1e30, -1000, -100, 0, 100, 1000, 1e30, -0.0], np.float32)
    x = np.concatenate([gates, np.ones_like(gates)])[None]
    for act in ("silu", "gelu"):
        for found in outputs(x, True, lambda p, src: p.activate(src, act)):  # noqa: B023
            np.testing.assert_allclose(found[0], np.maximum(gates, 0), atol=1e-25)


def test_gathered_rows_are_copies_in_the_order_asked_for(rng: np.random.Generator) -> None:
    x = rng.standard_normal((17, 37), dtype=np.float32)
    index = rng.integers(0, 17, 8).astype(np.int32)
    for isa in ISAS:
        for threads in THREADS:
            p = program(isa, threads)
            src = p.input(37, False)
            out = p.gather_rows(src)
            p.write(src, x)
            b = rows_only(17)
            b.set_logit_rows(index)
            p.run(b)
            np.testing.assert_array_equal(p.read(out, 8), x[index])
            p.close()


def test_rounding_is_to_nearest_even_and_keeps_nan_and_infinity() -> None:
    # 1 + 2^-8 lies half-way between two bf16 values, as does 1 + 3 * 2^-8; ties go to the even one.
    x = np.array([[1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, np.inf, np.nan, -3.0e38]], np.float32)
    for isa in ISAS:
        p = program(isa)
        src = p.input(12, False)
        out = p.activate(src, "silu")
        # With a gate this large silu is the gate itself, so y = 64 u.
        p.write(src, np.concatenate([np.full_like(x, 64), x / 64], axis=1))
        p.run(rows_only(1))
        got = p.read(out, 1)[0]
        assert list(got[:4]) == [1.0, 1 + 2.0**-6, 1 + 2.0**-7, np.inf]
        assert bits(got)[4] == 0x7FC00000
        assert got[5] == to_bf16(x)[0, 5]
        p.close()


def test_denormals_are_flushed_in_the_step_and_nowhere_else() -> None:
    x = np.array([[64.0, 1e-40]], np.float32)
    for found in outputs(x, True, lambda p, src: p.activate(src, "silu")):
        assert bits(found)[0, 0] == 0
    assert np.float32(1e-40) * np.float32(0.5) != 0


def test_what_lies_beyond_the_columns_never_reaches_a_product(rng: np.random.Generator) -> None:
    """Buffers share memory: a row's padding must be cleared even where NaN stood there before."""
    for isa in ISAS:
        for float32 in (False, True):
            p = program(isa, float32=float32)
            bad, good = p.input(256, False), p.input(40, False)
            p.linear(p.activate(bad, "silu"), [matrix(rng, 16, 128, float32)])
            out = p.linear(p.rms_norm(good, vector(np.ones(40, np.float32)), 1e-5), [matrix(rng, 16, 40, float32)])
            act = p.linear(p.activate(good, "silu"), [matrix(rng, 16, 20, float32)])
            p.write(bad, np.full((8, 256), np.nan, np.float32))
            p.write(good, rng.standard_normal((8, 40), dtype=np.float32))
            for _ in range(2):
                p.run(rows_only(8))
                assert np.isfinite(p.read(out, 8)).all()
                assert np.isfinite(p.read(act, 8)).all()
            p.close()
