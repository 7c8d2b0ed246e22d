"""Pooled hidden states: what the rows of a prompt, computed in any number of steps, become.

Owned by a pooled request's slot; life: for each of its works `wanted` says which rows' states are needed, `take` gets
them in the order of their positions, and `vector` is asked for after the last. Sums are carried in double precision,
one row after the other: neither chunks nor neighbours change a bit. A request without one is not pooled.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.types import Pooling

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Pool(Protocol):
    """See the module."""

    def wanted(self, count: int, last: bool) -> int:
        """Of a work's `count` rows so many at its end. last: the prompt ends with it."""
        ...

    def take(self, rows: F32) -> None:
        """[wanted, hidden]."""
        ...

    def vector(self) -> F32:
        """[hidden]; every row was taken."""
        ...


class MeanPool:
    """The mean over all positions."""

    def __init__(self) -> None:
        self._sum: F64 | None = None
        self._count = 0

    def wanted(self, count: int, last: bool) -> int:
        return count

    def take(self, rows: F32) -> None:
        values = rows.astype(np.float64)
        if self._sum is not None:
            values[0] += self._sum
        # accumulate adds in order by definition; sum may pair rows as their number suggests.
        self._sum = np.add.accumulate(values, axis=0)[-1].copy()
        self._count += len(rows)

    def vector(self) -> F32:
        assert self._sum is not None, "a prompt has at least one token"
        return (self._sum / self._count).astype(np.float32)


class LastPool:
    """The last position."""

    def __init__(self) -> None:
        self._row: F32 | None = None

    def wanted(self, count: int, last: bool) -> int:
        return int(last)

    def take(self, rows: F32) -> None:
        if len(rows):
            self._row = rows[-1].copy()

    def vector(self) -> F32:
        assert self._row is not None, "the last position was not computed"
        return self._row


def make_pool(pooling: Pooling | None) -> Pool | None:
    """None: the request draws tokens."""
    if pooling is None:
        return None
    return {Pooling.MEAN: MeanPool, Pooling.LAST: LastPool}[pooling]()
