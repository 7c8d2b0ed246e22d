"""Every quantised format: the values that kernels use, on every instruction set, against other code's reading of it."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import _native
from tests.support.formats import (
    GGUF,
    HALVES,
    QUANTISED,
    block_bytes,
    block_values,
    pack_rows,
    packed_format,
    random_rows,
    values,
)
from tests.support.native import F32, bits, program, rows_only, to_bf16, vector
from tests.support.products import Packed, product_bf16, product_f32

ROWS = [1, 2, 3, 5, 17, 130]


def every_isa() -> list[str]:
    found = list(_native.isas())
    return [*found, "amx-emulated"] if "avx2" in found else found


def unpacked(w: Packed, rounded: bool) -> F32:
    out = np.full((w.weight.n, w.weight.k), np.nan, np.float32)
    _native.unpack(w.weight.kind, w.weight.n, w.weight.k, w.data, out, rounded)
    return out


@pytest.mark.parametrize("source", QUANTISED)
@pytest.mark.parametrize(("n", "k"), [(1, 256), (16, 512), (35, 768)])
def test_packing_keeps_every_value(source: str, n: int, k: int, rng: np.random.Generator) -> None:
    w = packed_format(rng, source, n, k)
    np.testing.assert_array_equal(bits(unpacked(w, False)), bits(w.exact))
    np.testing.assert_array_equal(bits(unpacked(w, True)), bits(w.rounded))


@pytest.mark.parametrize("source", QUANTISED)
def test_the_float_kind_holds_the_exact_values(source: str, rng: np.random.Generator) -> None:
    n, k = 19, 512
    raw = random_rows(rng, source, n, k)
    data = pack_rows(source, "f32", raw, n, k)
    out = np.empty((n, k), np.float32)
    _native.unpack("f32", n, k, data, out, False)
    np.testing.assert_array_equal(bits(out), bits(values(source, raw, n, k)))


@pytest.mark.parametrize("float32", [False, True], ids=["bf16_path", "float32_path"])
@pytest.mark.parametrize("source", QUANTISED)
def test_expansions_equal_the_formula_on_every_instruction_set(
    source: str, float32: bool, rng: np.random.Generator
) -> None:
    """An embedding's rows are the expansion itself."""
    w = packed_format(rng, source, 21, 512)
    ids = np.arange(21, dtype=np.int32)
    for isa in every_isa():
        run = program(isa, 1, float32=float32)
        out = run.embed(w.weight)
        batch = rows_only(21)
        batch.set_tokens(ids)
        run.run(batch)
        np.testing.assert_array_equal(bits(run.read(out, 21)), bits(w.exact if float32 else w.rounded), isa)
        run.close()


@pytest.mark.parametrize("source", QUANTISED)
def test_products_follow_the_contract_on_every_instruction_set(source: str, rng: np.random.Generator) -> None:
    w = packed_format(rng, source, 35, 256, extreme=False)
    x = to_bf16(rng.standard_normal((max(ROWS), w.weight.k), dtype=np.float32))
    want = product_bf16(x, w.rounded)
    for isa in every_isa():
        for threads in (1, 2):
            p = program(isa, threads, rows=max(ROWS))
            src = p.input(w.weight.k, True)
            out = p.linear(src, [w.weight])
            for rows in ROWS:
                p.write(src, x[:rows])
                p.run(rows_only(rows))
                np.testing.assert_array_equal(bits(p.read(out, rows)), bits(want[:rows]), f"{isa}, {rows} rows")
            p.close()


@pytest.mark.parametrize("source", QUANTISED)
def test_extreme_scales_give_the_same_bits_everywhere(source: str, rng: np.random.Generator) -> None:
    w = packed_format(rng, source, 20, 512)
    x = to_bf16(rng.standard_normal((9, w.weight.k), dtype=np.float32))
    want = product_bf16(x, w.rounded)
    for isa in every_isa():
        p = program(isa, 2, rows=9)
        src = p.input(w.weight.k, True)
        out = p.linear(src, [w.weight])
        for rows in (1, 4, 9):
            p.write(src, x[:rows])
            p.run(rows_only(rows))
            np.testing.assert_array_equal(bits(p.read(out, rows)), bits(want[:rows]), f"{isa}, {rows} rows")
        p.close()


@pytest.mark.parametrize("source", QUANTISED)
def test_the_float_path_reads_packed_formats_too(source: str, rng: np.random.Generator) -> None:
    w = packed_format(rng, source, 18, 256, extreme=False)
    x = rng.standard_normal((6, w.weight.k), dtype=np.float32)
    want = product_f32(x, w.exact)
    for isa in every_isa():
        p = program(isa, 1, rows=6, float32=True)
        src = p.input(w.weight.k, False)
        out = p.linear(src, [w.weight])
        p.write(src, x)
        p.run(rows_only(6))
        np.testing.assert_array_equal(bits(p.read(out, 6)), bits(want), isa)
        p.close()


def test_formats_lie_side_by_side_with_a_bias_and_a_residual(rng: np.random.Generator) -> None:
    weights = [
        packed_format(rng, source, n, 256, extreme=False) for source, n in zip(QUANTISED, range(3, 99), strict=False)
    ]
    total = sum(w.weight.n for w in weights)
    bias, residual = (rng.standard_normal(shape, dtype=np.float32) for shape in ((total,), (7, total)))
    x = to_bf16(rng.standard_normal((7, 256), dtype=np.float32))
    want = residual + (np.concatenate([product_bf16(x, w.rounded) for w in weights], axis=1) + bias)
    for isa in every_isa():
        p = program(isa, 2)
        src, stream = p.input(256, True), p.input(total, False)
        p.linear(src, [w.weight for w in weights], vector(bias), stream)
        for rows in (7, 1):
            p.write(src, x[:rows])
            p.write(stream, residual[:rows])
            p.run(rows_only(rows))
            np.testing.assert_array_equal(bits(p.read(stream, rows)), bits(want[:rows]), isa)
        p.close()


@pytest.mark.parametrize("source", GGUF)
def test_expanded_weights_lie_within_half_a_step_of_the_file(source: str, rng: np.random.Generator) -> None:
    """Realistic scales; the distance in steps of bfloat16 (units in the last of its 8 bits) is printed."""
    w = packed_format(rng, source, 64, 1024, extreme=False)
    exact, found = w.exact.astype(np.float64), unpacked(w, True).astype(np.float64)
    step = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-120))) - 7)
    distance = np.abs(found - exact) / step
    print(f"{source}: {distance.max():.3f} steps at most, {distance.mean():.3f} on average")
    assert distance.max() <= 0.5


@pytest.mark.parametrize("source", QUANTISED)
def test_a_matrix_packed_in_pieces_is_the_same(source: str, rng: np.random.Generator) -> None:
    n, k, kind = 40, 512, source.lower()
    raw = random_rows(rng, source, n, k)
    whole = pack_rows(source, kind, raw, n, k)
    parts = [pack_rows(source, kind, raw[row : row + 16], min(16, n - row), k) for row in range(0, n, 16)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("source", QUANTISED)
def test_a_scale_that_is_not_finite_is_refused_by_its_place(source: str, rng: np.random.Generator) -> None:
    n, k = 5, 2 * block_values(source)
    float_offsets = {"G4": (0, 4), "G8": (0,)}.get(source, ())
    for kind in (source.lower(), "f32"):
        for at, bad in [*((h, b) for h in HALVES.get(source, ()) for b in (b"\x00\x7c", b"\x00\xfc", b"\x01\x7e"))] + [
            (f, np.float32(b).tobytes()) for f in float_offsets for b in (np.inf, np.nan, -1e31)
        ]:
            raw = random_rows(rng, source, n, k)
            raw.reshape(n, 2, block_bytes(source))[3, 1, at : at + len(bad)] = np.frombuffer(bad, np.uint8)
            with pytest.raises(ValueError, match="row 3, block 1"):
                pack_rows(source, kind, raw, n, k)
            data = np.zeros(_native.packed_bytes(kind, n, k), np.uint8)
            with pytest.raises(ValueError, match="row 35, block 1"):
                _native.pack(source, kind, n, k, raw, data, 32)


@pytest.mark.parametrize("source", QUANTISED)
def test_rows_are_whole_blocks_and_kinds_take_their_own_type(source: str) -> None:
    values_a_block = block_values(source)
    assert _native.source_row_bytes(source, 2 * values_a_block) == 2 * block_bytes(source)
    with pytest.raises(ValueError, match=f"multiple of {values_a_block}"):
        _native.source_row_bytes(source, values_a_block + 16)
    assert _native.can_pack(source, "f32") and not _native.can_pack(source, "bf16")
    assert [other for other in QUANTISED if _native.can_pack(other, source.lower())] == [source]


def test_the_packed_size_is_near_the_file_s() -> None:
    for source in QUANTISED:
        packed = _native.packed_bytes(source.lower(), 64, 1024)
        raw = 64 * _native.source_row_bytes(source, 1024)
        print(f"{source}: {8 * packed / 65536:.4f} bits a weight, {8 * raw / 65536:.4f} in the file")
        assert packed <= 1.04 * raw
