"""Windows, soft caps and sinks of attention: right, equal everywhere, and pages behind the window are never read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.support.attention import FAST, ISAS, Attention, draw, exact, last_rows, tolerance
from tests.support.contract import Form, attention_row
from tests.support.native import F32, bits

MODES = [False, True]
WINDOWS = [1, 7, 31, 32, 33, 64, 500, 512, 513, 1000]


@dataclass(frozen=True)
class Case:
    heads: tuple[int, int, int]
    window: int | None
    softcap: float | None
    sinks: F32 | None

    @property
    def form(self) -> dict[str, Any]:
        return {"window": self.window, "softcap": self.softcap, "sinks": self.sinks}


def draw_case(rng: np.random.Generator, heads: tuple[int, int, int], window: int | None) -> Case:
    softcap = float(rng.choice([0.5, 5, 50])) if rng.integers(2) else None
    sinks = rng.standard_normal(heads[0]).astype(np.float32) if rng.integers(2) else None
    print(f"heads {heads} window {window} softcap {softcap} sinks {sinks}")
    return Case(heads, window, softcap, sinks)


@pytest.mark.parametrize("naive", MODES)
@pytest.mark.parametrize("float32", MODES)
@pytest.mark.parametrize("context", [1, 33, 70, 530, 1100])
def test_every_form_is_right_and_equal_on_every_instruction_set(
    context: int, float32: bool, naive: bool, rng: np.random.Generator
) -> None:
    """A context's last rows: windows within a tile, over tiles, over partitions, wider than all."""
    heads = (4, 2, 40)
    x, count = draw(rng, context, heads), min(context, int(rng.integers(1, 40)))
    for window in rng.choice(WINDOWS, 2, replace=False).tolist():
        case, first = draw_case(rng, heads, window), None
        for isa in ISAS:
            for threads in (1, 3) if isa == FAST else (2,):
                a = Attention(
                    isa, threads, heads, float32=float32, rows=context, positions=context, naive=naive, **case.form
                )
                table = rng.permutation(a.blocks)[: -(-context // 32)].tolist()
                out = last_rows(a, x, count, table)
                want = exact(a.queries(count), *a.pages(table, context), context - count, **case.form)
                np.testing.assert_allclose(out, want, rtol=0, atol=tolerance(float32))
                first = out if first is None else first
                np.testing.assert_array_equal(bits(out), bits(first))
                a.close()


@pytest.mark.parametrize("float32", MODES)
@pytest.mark.parametrize("heads", [(2, 1, 40), (4, 1, 80), (1, 1, 96), (8, 1, 128), (4, 1, 256), (40, 1, 16)])
def test_every_head_shape_has_windows(heads: tuple[int, int, int], float32: bool, rng: np.random.Generator) -> None:
    x, case, first = draw(rng, 70, heads), draw_case(rng, heads, int(rng.integers(1, 50))), None
    for isa in ISAS:
        a = Attention(isa, 2, heads, float32=float32, rows=70, positions=70, **case.form)
        out = a.step([x], [0], [[2, 0, 1]])[0]
        want = exact(a.queries(70), *a.pages([2, 0, 1], 70), 0, **case.form)
        np.testing.assert_allclose(out, want, rtol=0, atol=tolerance(float32))
        first = out if first is None else first
        np.testing.assert_array_equal(bits(out), bits(first))
        a.close()


@pytest.mark.parametrize("float32", MODES)
@pytest.mark.parametrize(("context", "window"), [(45, None), (45, 3), (70, 40), (600, 90), (1050, 530)])
def test_the_bits_of_every_form_are_those_of_the_contract(
    context: int, window: int | None, float32: bool, rng: np.random.Generator
) -> None:
    heads = (2, 1, 40)
    x, sinks = draw(rng, context, heads), rng.standard_normal(2).astype(np.float32)
    for softcap, extra in ((None, None), (3.0, None), (30.0, sinks)):
        a = Attention(
            FAST,
            1,
            heads,
            float32=float32,
            rows=context,
            positions=context,
            window=window,
            softcap=softcap,
            sinks=extra,
        )
        table = list(range(-(-context // 32)))
        out = last_rows(a, x, 1, table)[0]
        key, value = a.pages(table, context)
        for h in range(2):
            form = Form(40**-0.5, window, softcap, None if extra is None else float(extra[h]))
            want = attention_row(a.queries(1)[0, h], key[:, 0], value[:, 0], form, float32)
            np.testing.assert_array_equal(bits(out[h]), bits(want))
        a.close()


@pytest.mark.parametrize("naive", MODES)
@pytest.mark.parametrize("float32", MODES)
def test_chunks_blocks_threads_and_neighbours_change_no_bit_of_a_window(
    float32: bool, naive: bool, rng: np.random.Generator
) -> None:
    heads, n = (6, 2, 40), 150 if naive else 1100
    x, other = draw(rng, n, heads), draw(rng, 37, heads)
    case = draw_case(rng, heads, int(rng.choice([1, 5, 40, 100, 600])))
    outs = []
    for chunk, block_size, threads in ((n, 32, 1), (64, 64, 2), (20, 32, 3), (n, 2048, 3)):
        a = Attention(
            FAST,
            threads,
            heads,
            float32=float32,
            rows=n + 37,
            positions=2048,
            block_size=block_size,
            naive=naive,
            **case.form,
        )
        *table, spare, spare2 = rng.permutation(a.blocks)[: -(-n // block_size) + 2].tolist()
        out = []
        for start in range(0, n, chunk):
            rows = x[start : start + chunk]
            out.append(a.step([other, rows], [0, start], [[spare, spare2], table])[1])
        outs.append(np.concatenate(out))
        a.close()
    for out in outs[1:]:
        np.testing.assert_array_equal(bits(out), bits(outs[0]))


@pytest.mark.parametrize("naive", MODES)
@pytest.mark.parametrize("threads", [1, 3])
def test_pages_behind_the_window_are_never_read(naive: bool, threads: int, rng: np.random.Generator) -> None:
    """Blocks that the window has left belong to others: here the table names one that holds NaN."""
    heads, n, chunk = (4, 1, 64), 700, 25
    x, window = draw(rng, n, heads), int(rng.choice([1, 30, 32, 64, 570]))
    print(f"window {window}")
    a = Attention(FAST, threads, heads, float32=False, rows=n, positions=n, blocks=30, naive=naive, window=window)
    *table, poison = rng.permutation(30)[:23].tolist()
    whole = a.step([x], [0], [table])[0]
    a.pool.fill(float("nan"))
    for start in range(0, n, chunk):
        left = max(0, start - window + 1) // 32
        seen = [poison] * left + table[left:]
        out = a.step([x[start : start + chunk]], [start], [seen])[0]
        np.testing.assert_array_equal(bits(out), bits(whole[start : start + chunk]))
    a.close()


def test_a_window_of_the_whole_context_changes_nothing(rng: np.random.Generator) -> None:
    heads, n = (3, 1, 64), 600
    x, outs = draw(rng, n, heads), []
    for window in (None, n, 10 * n):
        a = Attention(FAST, 2, heads, float32=False, rows=n, positions=n, window=window)
        outs.append(last_rows(a, x, 5, list(range(19))))
        a.close()
    np.testing.assert_array_equal(bits(outs[1]), bits(outs[0]))
    np.testing.assert_array_equal(bits(outs[2]), bits(outs[0]))


@pytest.mark.parametrize("naive", MODES)
def test_a_sink_far_above_every_score_takes_all_probability(naive: bool, rng: np.random.Generator) -> None:
    heads = (2, 1, 32)
    x = draw(rng, 40, heads)
    a = Attention(
        FAST, 1, heads, float32=True, rows=40, positions=64, naive=naive, sinks=np.array([1e30, -1e30], np.float32)
    )
    out = a.step([x], [0], [[0, 1]])[0]
    want = exact(a.queries(40), *a.pages([0, 1], 40), 0)
    assert not out[:, 0].any()
    np.testing.assert_allclose(out[:, 1], want[:, 1], rtol=0, atol=tolerance(True))
    a.close()
