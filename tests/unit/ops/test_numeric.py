"""Files' number formats and bfloat16, against the packages that define them."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.ops.blocks import FORMATS
from octavo.ops.encode import TYPES, encode
from octavo.ops.numeric import expand, expand_rounded, round_bf16, row_bytes


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1))
def test_rounding_to_bf16_is_nearest_even(values: list[float]) -> None:
    x = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_bf16(x), expected)


def test_nan_becomes_the_quiet_nan() -> None:
    odd = np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
    assert (round_bf16(odd).view(np.uint32) == 0x7FC00000).all()


HALVES = {
    "F16": range(0, 64, 2), "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""Where a block (of F16: 64 bytes) holds numbers of half precision."""


def random_blocks(source: str, rows: int, blocks: int, rng: np.random.Generator) -> np.ndarray:
    """Random bytes, but every number of half precision is finite (any sign, denormals and zeros too)."""
    size = FORMATS[source].nbytes if source in FORMATS else 64
    raw = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    for at in HALVES[source]:
        raw[:, at + 1] &= 0xBF
        raw[rng.random(len(raw)) < 0.1, at : at + 2] = 0
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("source", HALVES)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 4))
def test_expanding_equals_gguf_to_the_last_bit(source: str, seed: int, rows: int, blocks: int) -> None:
    raw = random_blocks(source, rows, blocks, np.random.default_rng(seed))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[source]).astype(np.float32)
    got = expand(source, expected.shape, memoryview(raw).cast("B"))
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
    assert row_bytes(source, expected.shape[1]) == raw.shape[1]
    with np.errstate(over="ignore"):
        rounded = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(expand_rounded(source, expected.shape, memoryview(raw).cast("B")), rounded)


@pytest.mark.parametrize("source", ["F32", "BF16"])
@given(seed=st.integers(0, 2**32 - 1))
def test_expanding_floats_keeps_their_bits(source: str, seed: int) -> None:
    dtype = np.dtype(np.float32 if source == "F32" else ml_dtypes.bfloat16)
    values = np.random.default_rng(seed).standard_normal((3, 7)).astype(dtype)
    got = expand(source, (3, 7), memoryview(values.view(np.uint8)).cast("B"))
    np.testing.assert_array_equal(got, values.astype(np.float32))


def exact_fma(d: float, q: int, m: float) -> np.float32:
    """d q + m rounded once, by way of fractions."""
    exact = Fraction(d) * q + Fraction(m)
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(np.float32(x).view(np.uint32)) & 1))


@given(seed=st.integers(0, 2**32 - 1), gap=st.integers(-60, 60))
def test_groups_of_four_bits_are_rounded_once(seed: int, gap: int) -> None:
    rng = np.random.default_rng(seed)
    d, m = rng.standard_normal(2).astype(np.float32) * np.array([1.0, 2.0**gap], np.float32)
    if seed % 3 == 0:  # d q often lies in the middle between two floats, and m decides
        d = np.float32(1 + 2.0**-23)
    q = rng.integers(0, 16, 32)
    raw = np.array([d, m], np.float32).tobytes() + (q[:16] | q[16:] << 4).astype(np.uint8).tobytes()
    expected = np.array([exact_fma(float(d), int(x), float(m)) for x in q])
    got = expand("G4", (1, 32), memoryview(raw))[0]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(expand_rounded("G4", (1, 32), memoryview(raw))[0], round_bf16(expected))


@given(seed=st.integers(0, 2**32 - 1))
def test_groups_of_eight_bits_are_scaled(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, q = rng.standard_normal((4, 1)).astype(np.float32), rng.integers(-128, 128, (4, 32)).astype(np.int8)
    raw = np.concatenate((d.view(np.uint8), q.view(np.uint8)), axis=1)
    np.testing.assert_array_equal(expand("G8", (2, 64), memoryview(raw).cast("B")), (d * q).reshape(2, 64))


def test_a_zero_of_a_rounded_matrix_has_no_sign() -> None:
    raw = np.array([-1.0], np.float16).tobytes() + bytes(32)
    assert not np.signbit(expand_rounded("Q8_0", (1, 32), memoryview(raw))).any()


@pytest.mark.parametrize("source", ["Q4_1", "Q6_K", "G4", "F16"])
def test_a_large_matrix_costs_little_beside_its_result(source: str) -> None:
    shape = (2048, 4096)
    data = memoryview(bytes(2048 * row_bytes(source, 4096)))
    tracemalloc.start()
    try:
        expand_rounded(source, shape, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2048 * 4096 + (32 << 20)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(ValueError, match="IQ2_S"):
        expand("IQ2_S", (1, 1), memoryview(b""))


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "F32"])
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_encoding_writes_the_bytes_that_gguf_writes(kind: str, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((3, 64)) * scale).astype(np.float32)
    if seed % 4 == 0:
        values[0] = 0
        values[1, :32] = values[1, 0]
        values[2] = np.round(values[2])
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(encode(kind, values), np.ascontiguousarray(expected).view(np.uint8).reshape(3, -1))


def test_encoding_float32_is_the_identity() -> None:
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_array_equal(expand("F32", (3, 5), memoryview(encode("F32", values)).cast("B")), values)
