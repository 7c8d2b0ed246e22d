"""Every native op against the reference in NumPy, op by op, on every instruction set of the machine.

TOLERANCES states how far each may be from the other. Float32: the order of sums. Rounded: besides, a value near the
middle of two bfloat16 may round either way, one unit of 2^-8 relative to it, or to the row's scale where sums follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo import _native
from octavo.ops.numeric import F32, round_bf16
from octavo.ops.reference import functions as fn
from octavo.ops.reference.moe import Choice, gated_add, moe, route
from octavo.ops.reference.sampler import ReferenceSample, draw
from tests.support.native import ISAS, batch, program, rope_tables, rows_only, vector

TOLERANCES = {  # op: (float32, rounded), absolute, for values of the order of 1
    "rms_norm": (2e-6, 2**-7),
    "linear": (2e-5, 2e-4),
    "silu": (2e-6, 2**-6),
    "gelu": (2e-6, 2**-6),
    "attention": (5e-6, 2**-6),
    "naive": (5e-6, 2**-6),
    "moe": (5e-6, 2**-6),
    "gated_add": (2e-6, 2e-6),
}
VOCAB = 290
"""Ids that may be drawn, of 300."""
MODES = [False, True]
"""Rounded or not."""


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def close(op: str, rounded: bool, got: F32, expected: F32) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCES[op][rounded])


def packed(values: F32, rounded: bool) -> _native.Weight:
    kind = "bf16" if rounded else "f32"
    data = np.zeros(_native.packed_bytes(kind, *values.shape), np.uint8)
    _native.pack("F32", kind, *values.shape, values, data)
    return _native.Weight(data, 0, kind, *values.shape)


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return np.clip(rng.standard_normal(shape, dtype=np.float32), -3, 3)


@pytest.mark.parametrize("rounded", MODES)
def test_rms_norm(isa: str, rounded: bool, rng: np.random.Generator) -> None:
    x, weight = normal(rng, 5, 72), normal(rng, 72) / 3
    p = program(isa, float32=not rounded)
    src = p.input(72, False)
    out = p.rms_norm(src, vector(weight), 1e-5)
    p.write(src, x)
    p.run(rows_only(5))
    close("rms_norm", rounded, p.read(out, 5), fn.rms_norm(x, weight, 1e-5, rounded))


@pytest.mark.parametrize("rounded", MODES)
@pytest.mark.parametrize("rows", [1, 7, 32])
def test_linear_with_bias_and_residual(isa: str, rounded: bool, rows: int, rng: np.random.Generator) -> None:
    x, residual = normal(rng, rows, 100), normal(rng, rows, 48)
    weight, bias = normal(rng, 48, 100) / 10, normal(rng, 48)
    if rounded:
        x, weight = round_bf16(x), round_bf16(weight)
    p = program(isa, float32=not rounded)
    src, dst = p.input(100, rounded), p.input(48, False)
    out = p.linear(src, [packed(weight[:30], rounded), packed(weight[30:], rounded)], vector(bias), dst)
    p.write(src, x)
    p.write(dst, residual)
    p.run(rows_only(rows))
    close("linear", rounded, p.read(out, rows), fn.linear(x, weight, bias, residual))


@pytest.mark.parametrize("rounded", MODES)
@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_activations(isa: str, act: str, rounded: bool, rng: np.random.Generator) -> None:
    x = normal(rng, 4, 2 * 41)
    p = program(isa, float32=not rounded)
    src = p.input(82, False)
    out = p.activate(src, act)
    p.write(src, x)
    p.run(rows_only(4))
    close(act, rounded, p.read(out, 4), (fn.silu_mul if act == "silu" else fn.gelu_mul)(x, rounded))


@pytest.mark.parametrize("rounded", MODES)
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_moe(isa: str, act: str, renormalise: bool, rounded: bool, rng: np.random.Generator) -> None:
    """Rows whose last chosen expert and first refused one lie apart: sums in another order choose the same."""
    hidden, inner, count = 72, 40, 7
    choice = Choice(3, renormalise, act)
    x, router = normal(rng, 40, hidden), normal(rng, count, hidden) / 8
    experts = [
        [normal(rng, *shape) / 8 for shape in ((inner, hidden), (inner, hidden), (hidden, inner))] for _ in range(count)
    ]
    if rounded:
        x, router = round_bf16(x), round_bf16(router)
        experts = [[round_bf16(part) for part in expert] for expert in experts]
    _, four = route(x, router, Choice(4, False, act))
    x = x[four[:, 2] - four[:, 3] > 1e-3][:12]
    p = program(isa, 2, float32=not rounded)
    src = p.input(hidden, rounded)
    triples = [[packed(part, rounded) for part in expert] for expert in experts]
    out = p.moe(src, packed(router, rounded), triples, 3, renormalise, act)
    p.write(src, x)
    p.run(rows_only(len(x)))
    close("moe", rounded, p.read(out, len(x)), moe(x, router, experts, choice, rounded))


def test_gated_add(isa: str, rng: np.random.Generator) -> None:
    x, gate, residual = normal(rng, 6, 40), normal(rng, 6, 1), normal(rng, 6, 40)
    p = program(isa)
    src, by, onto = p.input(40, False), p.input(1, False), p.input(40, False)
    p.gated_add(src, by, onto)
    for buffer, values in ((src, x), (by, gate), (onto, residual)):
        p.write(buffer, values)
    p.run(rows_only(6))
    close("gated_add", False, p.read(onto, 6), gated_add(x, gate, residual))


@pytest.mark.parametrize("rounded", MODES)
@pytest.mark.parametrize("naive", [False, True])
@pytest.mark.parametrize("heads", [(4, 2, 40), (3, 3, 16), (6, 2, 64)])
def test_rope_and_attention(
    isa: str, heads: tuple[int, int, int], naive: bool, rounded: bool, rng: np.random.Generator
) -> None:
    """A prompt of 45 positions whole, then its last row once more as a step of its own."""
    q_heads, kv_heads, dim = heads
    length, columns = 45, (q_heads + 2 * kv_heads) * dim
    qkv = normal(rng, length, columns)
    pool = _native.KVPool(4, 32, 1, kv_heads, dim, not rounded)
    p = program(isa, 2, rows=64, float32=not rounded, naive=naive, pools=[pool], rotary=dim)
    src = p.input(columns, False)
    out = p.attention(p.rope_and_store(src, 0, 0, q_heads), 0, 0, q_heads, dim**-0.5)
    cos, sin = rope_tables(64, dim)
    expected = attend(qkv, (q_heads, kv_heads, dim), cos[:length], sin[:length], naive, rounded)
    op = "naive" if naive else "attention"
    p.write(src, qkv)
    p.run(batch([0] * length, [(0, length, 0, 0)], [[[2, 1]]]))
    close(op, rounded, p.read(out, length), expected)
    p.write(src, qkv[-1:])
    p.run(batch([0], [(0, 1, length - 1, length)], [[[2, 1]]]))
    close(op, rounded, p.read(out, 1), expected[-1:])


def attend(qkv: F32, heads: Sequence[int], cos: F32, sin: F32, naive: bool, rounded: bool) -> F32:
    q_heads, kv_heads, dim = heads
    split = qkv.reshape(len(qkv), -1, dim)
    turned = fn.rope(split[:, : q_heads + kv_heads], cos, sin)
    value = split[:, q_heads + kv_heads :]
    if rounded:
        turned, value = round_bf16(turned), round_bf16(value)
    attention = fn.attention_naive if naive else fn.attention_tiled
    return attention(turned[:, :q_heads], turned[:, q_heads:], value, fn.View(dim**-0.5), rounded)


def random_sample(rng: np.random.Generator, kind: type) -> tuple[object, ...]:
    """(constructor arguments, a function that applies the rest): the same for both back ends."""
    vocab = 300  # rows of the head
    temperature = float(rng.choice([0.0, 0.5, 1.0, 1.7]))
    arguments = (
        temperature,
        int(rng.choice([0, 1, 5, 40])),
        float(rng.choice([1.0, 0.9, 0.4])),
        float(rng.choice([0.0, 0.05])),
        int(rng.integers(0, 2**63)),
        int(rng.integers(0, 4)),
        int(rng.integers(-1, 6)),
    )
    prompt = rng.integers(0, 2, vocab).astype(np.int32)
    output = (rng.integers(0, 4, vocab) * rng.integers(0, 2, vocab)).astype(np.int32)
    penalties = (float(rng.choice([1.0, 1.3])), float(rng.choice([0.0, 0.7])), float(rng.choice([0.0, 0.4])))
    bias = (rng.choice(VOCAB, 4, replace=False).astype(np.int32), rng.standard_normal(4).astype(np.float32) * 3)
    banned = rng.choice(VOCAB, 5, replace=False).astype(np.int32)
    mask = rng.integers(0, 2**32, 10, dtype=np.uint64).astype(np.uint32)
    position = int(rng.integers(1, 5000))
    masked = bool(rng.integers(0, 2))
    made = []
    for sample in (_native.Sample(*arguments), kind(*arguments)):
        sample.position = position
        sample.set_penalties(*penalties, prompt, output)
        sample.set_bias(*bias)
        sample.set_banned(banned)
        sample.set_mask(mask if masked else None)
        made.append(sample)
    return tuple(made)


def test_sampler_draws_the_same_tokens(isa: str, rng: np.random.Generator) -> None:
    """Given the same logits; log-probabilities within float rounding. One row of NaN among them."""
    rows = 64
    logits = normal(rng, rows, 300) * 3
    logits[7, 5] = np.nan
    pairs = [random_sample(rng, ReferenceSample) for _ in range(rows)]
    p = program(isa, 2, rows=rows, logit_rows=rows, float32=True)
    buffer = p.gather_rows(p.embed(packed(logits, False)))
    p.sample(buffer, VOCAB)
    p.run(batch(range(rows), [], [], range(rows), [native for native, _ in pairs]))
    for row, (got, (_, sample)) in enumerate(zip(p.results(), pairs, strict=True)):
        expected = draw(logits[row, :VOCAB], sample)
        assert got[0] == expected[0], row
        np.testing.assert_allclose(got[1], expected[1], atol=1e-5)
        if expected[0] >= 0:
            assert got[2] == expected[2], row
            np.testing.assert_allclose(got[3], expected[3], atol=1e-5)
    assert p.results()[7][0] == -1
