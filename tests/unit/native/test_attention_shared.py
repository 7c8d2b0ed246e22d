"""Rows that share partitions get the bits that they get alone, on every instruction set, however they are divided."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.support.attention import ISAS, Attention, draw
from tests.support.native import F32, batch, bits

Run = tuple[int, int, int, int]
PARTITION = 512


def _stored(a: Attention, x: F32, tables: list[list[int]], lengths: list[int], shared: int) -> None:
    """Stores every sequence's positions but its last; the first `shared` of all are those of the first sequence."""
    for table, length in zip(tables, lengths, strict=True):
        begin = 0 if table is tables[0] else shared
        for first in range(begin, length - 1, 256):
            end = min(first + 256, length - 1)
            a.step([x[first:end]], [first], [table], store_only=True)


def _decode(
    a: Attention, x: F32, tables: list[list[int]], lengths: list[int], shared: tuple[list[Run], list[int]] | None
) -> F32:
    count = len(tables)
    width = max(map(len, tables))
    seqs = [(i, 1, length - 1, length if i else 0) for i, length in enumerate(lengths)]
    b = batch([0] * count, [(i, 1, s, 0) for i, _, s, _ in seqs], [[[*t, *[0] * (width - len(t))] for t in tables]])
    if shared is not None:
        b.set_shared([(np.array(shared[0], np.int32).reshape(-1, 4), np.array(shared[1], np.int32))])
    rows = np.stack([x[length - 1] for length in lengths])
    a.program.write(a.src, rows.reshape(count, -1))
    a.program.run(b)
    out: F32 = a.program.read(a.out, count)
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("heads", "float32", "softcap"),
    [((9, 3, 64), False, None), ((4, 2, 40), False, 20.0), ((8, 1, 32), True, None), ((3, 3, 16), False, None)],
)
def test_sharing_rows_get_the_bits_they_get_alone(
    isa: str, threads: int, heads: tuple[int, int, int], float32: bool, softcap: float | None
) -> None:
    seed = random.randrange(1 << 31)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    lengths = [1060, 1300, 1025, 1601, 1030]
    shared = 2 * PARTITION
    x = draw(rng, max(lengths), heads)
    prefix = shared // 32
    a = Attention(
        isa, threads, heads, float32=float32, rows=256, positions=max(lengths), blocks=200, softcap=softcap,
        sinks=rng.standard_normal(heads[0]).astype(np.float32),
    )  # fmt: skip
    blocks = list(rng.permutation(200))
    head = [int(blocks.pop()) for _ in range(prefix)]
    tables = [head + [int(blocks.pop()) for _ in range(-(-length // 32) - prefix)] for length in lengths]
    _stored(a, x, tables, lengths, shared)
    alone = _decode(a, x, tables, lengths, None)
    assert np.isfinite(alone).all()
    ways: list[tuple[list[Run], list[int]]] = [
        ([(0, 5, 0, 2)], [0, 1, 2, 3, 4]),
        ([(0, 5, 0, 1), (5, 3, 1, 2)], [0, 1, 2, 3, 4, 4, 1, 2]),
        ([(0, 2, 0, 2), (2, 2, 0, 1)], [3, 1, 0, 4]),
        ([(0, 1, 0, 1)], [2]),
    ]
    for way in ways:
        assert np.array_equal(bits(_decode(a, x, tables, lengths, way)), bits(alone)), way
    a.close()


def test_what_cannot_be_shared_is_refused() -> None:
    heads = (2, 1, 32)
    a = Attention(ISAS[0], 1, heads, float32=False, rows=256, positions=1100, blocks=80)
    x = draw(np.random.default_rng(1), 1100, heads)
    tables = [[*range(32), 33], [*range(31), 34, 35], [*range(32), 36]]
    lengths = [1040, 1030, 1030]
    wrong: dict[str, tuple[list[Run], list[int]]] = {
        "same blocks": ([(0, 2, 0, 2)], [0, 1]),
        "in order": ([(0, 2, 1, 2)], [0, 2]),
        "no sequence": ([(0, 2, 0, 1)], [0, 3]),
        "lies before": ([(0, 2, 0, 3)], [0, 2]),
        "not there": ([(0, 3, 0, 1)], [0, 2]),
        "at least one": ([(0, 2, 0, 0)], [0, 2]),
    }
    for reason, way in wrong.items():
        with pytest.raises(ValueError, match=reason):
            _decode(a, x, tables, lengths, way)
    a.close()
