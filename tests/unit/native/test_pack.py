"""Packed weights: every source type keeps its values, at any shape; broken blocks are refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo import _native
from tests.support.native import F32, bits, program, rows_only, to_bf16
from tests.support.products import packed, source_rows

SHAPES = [(1, 32), (15, 64), (16, 96), (17, 32), (100, 576)]
ODD_DEPTHS = [(1, 1), (17, 40), (5, 100)]


def unpacked(kind: str, n: int, k: int, data: NDArray[np.uint8], rounded: bool) -> F32:
    out = np.full((n, k), np.nan, np.float32)
    _native.unpack(kind, n, k, data, out, rounded)
    return out


def pack(source: str, kind: str, values: NDArray[np.generic], n: int, k: int) -> NDArray[np.uint8]:
    data = np.zeros(_native.packed_bytes(kind, n, k), np.uint8)
    _native.pack(source, kind, n, k, np.ascontiguousarray(values).view(np.uint8), data)
    return data


@pytest.mark.parametrize("kind", ["bf16", "q8_0", "q4_1", "f32"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_packing_keeps_every_value(kind: str, n: int, k: int, rng: np.random.Generator) -> None:
    p = packed(rng, kind, n, k)
    np.testing.assert_array_equal(bits(unpacked(kind, n, k, p.data, False)), bits(p.exact))
    np.testing.assert_array_equal(bits(unpacked(kind, n, k, p.data, True)), bits(p.rounded))


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize(("n", "k"), ODD_DEPTHS)
def test_float_kinds_take_any_depth(kind: str, n: int, k: int, rng: np.random.Generator) -> None:
    p = packed(rng, kind, n, k)
    np.testing.assert_array_equal(bits(unpacked(kind, n, k, p.data, False)), bits(p.exact))


@pytest.mark.parametrize(("kind", "gguf_type"), [("Q8_0", "Q8_0"), ("Q4_1", "Q4_1")])
def test_blocks_written_by_gguf_have_the_values_that_gguf_reads(
    kind: str, gguf_type: str, rng: np.random.Generator
) -> None:
    n, k = 33, 192
    code = gguf.GGMLQuantizationType[gguf_type]
    raw = gguf.quants.quantize(rng.standard_normal((n, k), dtype=np.float32), code)
    data = pack(kind, kind.lower(), raw, n, k)
    expected = gguf.quants.dequantize(raw, code)
    np.testing.assert_allclose(unpacked(kind.lower(), n, k, data, False), expected, rtol=3e-7, atol=1e-7)
    assert _native.source_row_bytes(kind, k) == raw.shape[1]


@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
def test_float_sources_round_to_nearest_even(source: str, rng: np.random.Generator) -> None:
    n, k = 18, 40
    values = rng.standard_normal((n, k), dtype=np.float32)
    # Exact ties of bfloat16, both ways.
    values[0] = (np.arange(k, dtype=np.uint32) << 16 | 0x3F808000).view(np.float32)
    if source == "F16":
        values = values.astype(np.float16).astype(np.float32)
        raw: NDArray[np.generic] = values.astype(np.float16)
    elif source == "BF16":
        values = to_bf16(values)
        raw = (values.view(np.uint32) >> 16).astype(np.uint16)
    else:
        raw = values
    found = unpacked("bf16", n, k, pack(source, "bf16", raw, n, k), True)
    np.testing.assert_array_equal(bits(found), bits(to_bf16(values)))
    found = unpacked("f32", n, k, pack(source, "f32", raw, n, k), False)
    np.testing.assert_array_equal(bits(found), bits(values))


@pytest.mark.parametrize("kind", ["q8_0", "q4_1"])
def test_quantised_sources_pack_as_floats_too(kind: str, rng: np.random.Generator) -> None:
    n, k = 20, 64
    raw, values = source_rows(rng, kind, n, k)
    data = pack(kind.upper(), "f32", raw, n, k)
    found = unpacked("f32", n, k, data, False)
    np.testing.assert_allclose(found, values, rtol=1e-7, atol=0)


def test_every_half_value_survives() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    found = unpacked("f32", 64, 1024, pack("F16", "f32", halves, 64, 1024), False)
    np.testing.assert_array_equal(found.reshape(-1), halves.astype(np.float32))


@pytest.mark.parametrize("kind", ["q8_0", "q4_1"])
@pytest.mark.parametrize("scale", [0x7C00, 0xFC00, 0x7E00])
def test_a_block_whose_scale_is_not_finite_is_refused(kind: str, scale: int, rng: np.random.Generator) -> None:
    raw, _ = source_rows(rng, kind, 4, 64)
    raw = np.ascontiguousarray(raw)
    raw[2, :2] = np.array([scale], np.uint16).view(np.uint8)
    with pytest.raises(ValueError, match="row 2"):
        pack(kind.upper(), kind, raw, 4, 64)


def test_types_that_do_not_fit_are_refused(rng: np.random.Generator) -> None:
    assert not _native.can_pack("F32", "q4_1")
    assert not _native.can_pack("Q4_1", "q8_0")
    assert not _native.can_pack("Q8_0", "bf16")
    assert _native.can_pack("Q8_0", "f32")
    with pytest.raises(ValueError, match="32"):
        _native.source_row_bytes("Q4_1", 40)
    with pytest.raises(ValueError):
        pack("F32", "q8_0", rng.standard_normal((2, 32), dtype=np.float32), 2, 32)


@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize("kind", ["bf16", "q8_0", "q4_1", "f32"])
def test_embedding_reads_the_values_of_the_path(kind: str, float32: bool, rng: np.random.Generator) -> None:
    vocab, k = 35, 96
    p = packed(rng, kind, vocab, k)
    ids = rng.integers(0, vocab, 19).astype(np.int32)
    for isa in [*_native.isas(), "amx-emulated"]:
        if isa == "amx-emulated" and "avx2" not in _native.isas():
            continue
        run = program(isa, 2, float32=float32)
        out = run.embed(p.weight)
        batch = rows_only(19)
        batch.set_tokens(ids)
        run.run(batch)
        expected = (p.exact if float32 else p.rounded)[ids]
        np.testing.assert_array_equal(bits(run.read(out, 19)), bits(expected))
        run.close()
