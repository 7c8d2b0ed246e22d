"""Attention over pages: equal bits on every instruction set and for every division of the work, and right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.attention import FAST, ISAS, Attention, draw, exact, last_rows, tolerance
from tests.support.contract import Form, attention_row
from tests.support.native import bits


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
        want = attention_row(a.queries(1)[0, h], key[:, 0], value[:, 0], Form(head_dim**-0.5), float32)
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
