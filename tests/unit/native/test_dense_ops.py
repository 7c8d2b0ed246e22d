"""Norms with a residual, q/k norms, casts, scales, soft caps, several rotations: right, and equal bits everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from octavo import _native
from tests.support import contract
from tests.support.attention import ISAS
from tests.support.native import F32, batch, bits, program, rope_tables, rows_only, to_bf16, vector

MODES = [False, True]
ROWS = [0, 1, 3, 17]
EPS = 1e-6

Record = Callable[[_native.Program, list[int]], int]


def outputs(inputs: list[F32], float32: bool, record: Record) -> F32:
    """The op's output on every instruction set, some numbers of threads, and called alone: all the same bits."""
    rows, found = len(inputs[0]), []
    for isa in ISAS:
        for threads in (1, 3):
            p = program(isa, threads, float32=float32)
            sources = [p.input(x.shape[1], False) for x in inputs]
            out = record(p, sources)
            for run in (lambda p=p: p.run(rows_only(rows)), lambda p=p: each_op(p, rows)):
                for src, x in zip(sources, inputs, strict=True):
                    p.write(src, x)
                run()
                found.append(p.read(out, rows))
            p.close()
    for other in found[1:]:
        np.testing.assert_array_equal(bits(other), bits(found[0]))
    return found[0]


def each_op(p: _native.Program, rows: int) -> None:
    for i in range(p.num_ops):
        p.run_op(i, rows_only(rows))


def packed(values: F32, float32: bool) -> _native.Weight:
    kind = "f32" if float32 else "bf16"
    data = np.zeros(_native.packed_bytes(kind, *values.shape), np.uint8)
    _native.pack("F32", kind, *values.shape, values, data)
    return _native.Weight(data, 0, kind, *values.shape)


def norm(x: F32, weight: F32) -> F32:
    """The contract's formula, to the bit: x [rows, any], normed over all columns."""
    out = np.empty_like(x)
    for row, y in zip(x, out, strict=True):
        lanes = np.zeros(16, np.float32)
        for part in np.pad(row, (0, -len(row) % 16)).reshape(-1, 16):
            lanes = contract.fma(part, part, lanes)
        mean = contract.tree(lanes) / np.float32(len(row)) + np.float32(EPS)
        y[:] = (row * (np.float32(1) / np.sqrt(mean))) * weight
    return out


@pytest.mark.parametrize("float32", MODES)
@pytest.mark.parametrize("cols", [1, 31, 40, 576])
def test_a_norm_is_added_to_the_residual_in_float(cols: int, float32: bool, rng: np.random.Generator) -> None:
    weight = rng.uniform(-2, 2, cols).astype(np.float32)
    for rows in ROWS:
        x, residual = (rng.standard_normal((2, rows, cols), dtype=np.float32) * 10)[:]
        got = outputs([x, residual], float32, lambda p, s: p.rms_norm(s[0], vector(weight), EPS, s[1]))
        np.testing.assert_array_equal(bits(got), bits(residual + norm(x, weight)))


@pytest.mark.parametrize("float32", MODES)
@pytest.mark.parametrize("whole", MODES)
@pytest.mark.parametrize("heads", [(4, 2, 40), (2, 1, 80), (3, 3, 96), (8, 1, 128), (4, 1, 256), (3, 1, 7)])
def test_q_and_k_are_normed_by_head_or_whole_and_v_stays(
    heads: tuple[int, int, int], whole: bool, float32: bool, rng: np.random.Generator
) -> None:
    q_heads, kv_heads, dim = heads
    counts = (q_heads, kv_heads)
    weights = [rng.uniform(-2, 2, n * dim if whole else dim).astype(np.float32) for n in counts]
    columns = (q_heads + 2 * kv_heads) * dim
    for rows in (1, 9):
        x = rng.standard_normal((rows, columns), dtype=np.float32) * 3
        q, k, v = np.split(x, [q_heads * dim, (q_heads + kv_heads) * dim], axis=1)
        parts = [norm(a.reshape(-1, len(w)), w).reshape(rows, -1) for a, w in zip((q, k), weights, strict=True)]
        want, first = np.concatenate([*parts, v], axis=1), None
        for isa in ISAS:
            for threads in (1, 3):
                pool = _native.KVPool(2, 32, 1, kv_heads, dim, float32)
                p = program(isa, threads, float32=float32, pools=[pool])
                src = p.input(columns, False)
                out = p.qk_norm(src, 0, 0, q_heads, vector(weights[0]), vector(weights[1]), EPS)
                assert out == src
                p.write(src, x)
                p.run(rows_only(rows))
                first = p.read(out, rows) if first is None else first
                np.testing.assert_array_equal(bits(p.read(out, rows)), bits(first))
                p.close()
        np.testing.assert_array_equal(bits(first), bits(want))


@pytest.mark.parametrize("float32", MODES)
@pytest.mark.parametrize("cols", [1, 40, 100])
def test_a_cast_gives_a_product_what_it_reads(cols: int, float32: bool, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((24, cols), dtype=np.float32)
    for rows in ROWS:
        x = rng.standard_normal((rows, cols), dtype=np.float32)
        want = x if float32 else to_bf16(x)
        np.testing.assert_array_equal(bits(outputs([x], float32, lambda p, s: p.cast(s[0]))), bits(want))
        got = outputs([x], float32, lambda p, s: p.linear(p.cast(s[0]), [packed(weight, float32)]))
        np.testing.assert_allclose(
            got, want @ (weight if float32 else to_bf16(weight)).T, rtol=0, atol=1e-5 * np.sqrt(cols)
        )


@pytest.mark.parametrize("float32", MODES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 32])
def test_a_products_scale_comes_after_the_bias_and_before_the_residual(
    rows: int, float32: bool, rng: np.random.Generator
) -> None:
    """To the bit: the product without scale gives the sum with the bias."""
    x, residual = rng.standard_normal((rows, 72), dtype=np.float32), rng.standard_normal((rows, 40), dtype=np.float32)
    weight = packed(rng.standard_normal((40, 72), dtype=np.float32), float32)
    bias, scale = vector(rng.standard_normal(40).astype(np.float32)), float(rng.uniform(0.1, 3))
    plain = outputs([x], float32, lambda p, s: p.linear(p.cast(s[0]), [weight], bias))
    got = outputs([x, residual], float32, lambda p, s: p.linear(p.cast(s[0]), [weight], bias, s[1], scale))
    np.testing.assert_array_equal(bits(got), bits(residual + plain * np.float32(scale)))


@pytest.mark.parametrize("float32", MODES)
def test_an_embedding_is_scaled_in_float(float32: bool, rng: np.random.Generator) -> None:
    values, scale = rng.standard_normal((50, 40), dtype=np.float32), float(np.sqrt(40))
    weight, ids = packed(values, float32), rng.integers(0, 50, 9).tolist()
    want = (values if float32 else to_bf16(values))[ids] * np.float32(scale)
    for isa in ISAS:
        p = program(isa, 2, float32=float32)
        out = p.embed(weight, scale)
        p.run(batch(ids))
        np.testing.assert_array_equal(bits(p.read(out, 9)), bits(want))
        p.close()


@pytest.mark.parametrize("float32", MODES)
@pytest.mark.parametrize("vocab", [1, 101, 2500])
def test_logits_are_scaled_then_capped(vocab: int, float32: bool, rng: np.random.Generator) -> None:
    x, weight = rng.standard_normal((5, 40), dtype=np.float32), rng.standard_normal((vocab, 40), dtype=np.float32)
    scale, cap = float(rng.uniform(0.1, 3)), float(rng.choice([0.5, 30]))
    head = packed(weight, float32)

    def logits(p: _native.Program, s: list[int]) -> int:
        return p.logits(p.cast(s[0]), head, scale, cap)

    plain = outputs([x], float32, lambda p, s: p.logits(p.cast(s[0]), head))
    got = outputs([x], float32, logits)
    np.testing.assert_array_equal(bits(got), bits(contract.soft_cap(plain * np.float32(scale), cap)))
    np.testing.assert_allclose(got, cap * np.tanh(plain.astype(np.float64) * scale / cap), rtol=0, atol=cap * 2e-7)


def test_a_soft_cap_keeps_nan_and_bounds_infinity() -> None:
    one, x = packed(np.eye(5, dtype=np.float32), True), np.array([[np.nan, 1e30, -1e30, 0, 2]], np.float32)
    nan = packed(np.full((1, 5), np.nan, np.float32), True)
    got = outputs(
        [x[:, 1:]], True, lambda p, s: p.logits(p.cast(s[0]), packed(np.eye(4, dtype=np.float32), True), 1, 7)
    )
    np.testing.assert_allclose(got, [[7, -7, 0, 7 * np.tanh(2 / 7)]], rtol=1e-6)
    assert np.isnan(outputs([x], True, lambda p, s: p.logits(p.cast(s[0]), nan, 1, 7))).all()
    assert np.isnan(outputs([x], True, lambda p, s: p.logits(p.cast(s[0]), one, 1, 7))[0, 0])


@pytest.mark.parametrize("float32", MODES)
def test_each_layer_rotates_by_its_own_table_or_not_at_all(float32: bool, rng: np.random.Generator) -> None:
    dim, rows, start = 80, 20, 30
    x = rng.standard_normal((rows, 4 * dim), dtype=np.float32)
    cos, sin = rope_tables(64, 80)
    tables = [rope_tables(64, 80), rope_tables(64, 32), (cos * np.float32(1.25), sin * np.float32(1.25))]
    for isa in ISAS:
        pool = _native.KVPool(3, 32, 4, 1, dim, float32)
        p = program(isa, 2, rows=32, positions=64, float32=float32, pools=[pool], ropes=tables)
        src = p.input(4 * dim, False)
        queries = [p.rope_and_store(src, 0, layer, 2, rope) for layer, rope in enumerate((2, None, 1, 0))]
        kept = [p.tap(q) for q in queries]
        p.write(src, x)
        p.run(batch([0] * rows, [(0, rows, start, 0)], [[[2, 0]]]))
        for layer, rope in enumerate((2, None, 1, 0)):
            want = turned(x.reshape(rows, 4, dim), None if rope is None else tables[rope], start)
            if not float32:
                want = to_bf16(want)
            got = p.read(kept[layer], rows).reshape(rows, 2, -1)[..., :dim]
            key, value = np.empty((2, 32, 1, dim), np.float32), np.empty((2, 32, 1, dim), np.float32)
            for i, block in enumerate((2, 0)):
                pool.read(layer, block, key[i], value[i])
            np.testing.assert_array_equal(bits(got), bits(want[:, :2]))
            np.testing.assert_array_equal(bits(key.reshape(64, dim)[start : start + rows]), bits(want[:, 2]))
            exact = x.reshape(rows, 4, dim)[:, 3]
            np.testing.assert_array_equal(
                value.reshape(64, dim)[start : start + rows], exact if float32 else to_bf16(exact)
            )
        p.close()


def turned(x: F32, table: tuple[F32, F32] | None, start: int) -> F32:
    """The contract's rotation, to the bit."""
    if table is None:
        return x
    cos, sin = (t[start : start + len(x), None] for t in table)
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate(
        [contract.fma(-b, sin, a * cos), contract.fma(a, sin, b * cos), x[..., 2 * half :]], axis=-1
    ).astype(np.float32)


def test_padding_after_a_cast_or_gathered_norm_never_reaches_a_product(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((16, 40), dtype=np.float32)
    for isa in ISAS:
        for float32 in MODES:
            p = program(isa, float32=float32)
            bad, good = p.input(256, False), p.input(40, False)
            p.linear(p.activate(bad, "silu"), [packed(np.ones((16, 128), np.float32), float32)])
            out = p.linear(p.cast(good), [packed(weight, float32)])
            p.write(bad, np.full((8, 256), np.nan, np.float32))
            p.write(good, rng.standard_normal((8, 40), dtype=np.float32))
            for _ in range(2):
                p.run(rows_only(8))
                assert np.isfinite(p.read(out, 8)).all()
            p.close()


def test_an_op_in_place_is_no_reader_that_frees_the_buffer(rng: np.random.Generator) -> None:
    """Logits that are capped and then read by nobody live to the end of the program."""
    weight = packed(rng.standard_normal((64, 64), dtype=np.float32), True)
    p = program(ISAS[0], float32=True)
    src = p.input(64, False)
    logits = p.logits(p.cast(src), weight, 1.0, 5.0)
    h = p.cast(src)
    for _ in range(4):
        h = p.cast(p.linear(h, [weight]))
    p.write(src, rng.standard_normal((3, 64), dtype=np.float32))
    p.run(rows_only(3))
    assert np.abs(p.read(logits, 3)).max() <= 5
    p.close()


def test_recording_refuses_what_does_not_fit(rng: np.random.Generator) -> None:
    pool = _native.KVPool(2, 32, 1, 2, 16, False)
    p = program(ISAS[0], pools=[pool], rotary=16)
    x, other, half = p.input(96, False), p.input(64, False), p.input(96, True)
    one, head = vector(np.ones(96, np.float32)), vector(np.ones(16, np.float32))
    q = p.rope_and_store(x, 0, 0, 2, None)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: p.rms_norm(x, one, EPS, other), "residual"),
        (lambda: p.rms_norm(x, one, EPS, half), "residual"),
        (lambda: p.rms_norm(x, one, EPS, x), "own input"),
        (lambda: p.rms_norm(x, one, EPS, 99), "does not exist"),
        (lambda: p.rms_norm(x, one, EPS, -1), "does not exist"),
        (lambda: p.qk_norm(x, 0, 0, 2, one, head, EPS), "as many values"),
        (lambda: p.qk_norm(other, 0, 0, 2, head, head, EPS), "columns"),
        (lambda: p.qk_norm(x, 0, 0, 3, head, head, EPS), "multiple"),
        (lambda: p.qk_norm(x, 0, 1, 2, head, head, EPS), "layer 1"),
        (lambda: p.cast(half), "float rows"),
        (lambda: p.rope_and_store(x, 0, 0, 2, 1), "table 1 does not exist"),
        (lambda: p.rope_and_store(x, 0, 0, 2, -1), "table"),
        (lambda: p.attention(q, 0, 0, 2, 1.0, 0), "window"),
        (lambda: p.attention(q, 0, 0, 2, 1.0, None, 0.0), "softcap"),
        (lambda: p.attention(q, 0, 0, 2, 1.0, None, None, head), "sinks"),
        (lambda: p.logits(p.cast(x), packed(np.ones((4, 96), np.float32), False), 1.0, -1.0), "cap"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()
    wide = program(ISAS[0], pools=[pool], rotary=18)
    with pytest.raises(ValueError, match="wider"):
        wide.rope_and_store(wide.input(96, False), 0, 0, 2)
    with pytest.raises(ValueError, match="max_positions"):
        program(ISAS[0], pools=[pool], ropes=[rope_tables(64, 16), rope_tables(63, 16)])
    with pytest.raises(ValueError, match="same shape"):
        program(ISAS[0], pools=[pool], ropes=[(rope_tables(64, 16)[0], rope_tables(64, 8)[1])])
