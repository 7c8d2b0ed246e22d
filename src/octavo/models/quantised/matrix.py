"""A quantised matrix whose rows are made when they are asked for: "G4", "G8", "BF16" or "F32" (see ops/blocks.py).

A format's module knows how to take some rows apart into integers q with scales d and zero points z, w = d (q - z); what
becomes of them is decided here. `QuantisedTensor.data` is made anew at each access and owned by whoever asked, so that
a model is loaded with one tensor in memory beside the mapped files. Owns nothing; off switch: none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.ops.numeric import F32, row_bytes

Ints = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Encode = Callable[[int, int], Bytes]
"""Rows [begin, end) as bytes of the tensor's type."""

BLOCK = 32
"""Inputs a block of G4 and G8."""
_PIECE = 1 << 19
"""Values made at a time."""


@dataclass(frozen=True)
class QuantisedTensor:
    """Stands where a plain file has a tensor of this name."""

    name: str
    type: str
    shape: tuple[int, int]
    prepare: Callable[[], Encode] = field(repr=False)

    @property
    def nbytes(self) -> int:
        return self.shape[0] * row_bytes(self.type, self.shape[1])

    @property
    def data(self) -> memoryview:
        rows, columns = self.shape
        out = np.empty((rows, row_bytes(self.type, columns)), np.uint8)
        encode = self.prepare()
        step = max(BLOCK, _PIECE // columns // BLOCK * BLOCK)
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            out[begin:end] = encode(begin, end)
        return out.reshape(-1).data


@dataclass(frozen=True)
class Scales:
    """Scale and zero point of every row and group."""

    d: F32
    """[rows, groups]"""
    z: F32 | None
    group: int
    """Inputs a group."""
    order: Ints | None = None
    """Group of each input where they do not follow one another."""

    def part(self, begin: int, end: int) -> Scales:
        return Scales(self.d[begin:end], None if self.z is None else self.z[begin:end], self.group, self.order)


@dataclass(frozen=True)
class Fit:
    """What a matrix becomes, and why where it cannot keep its own size."""

    type: str
    reason: str | None = None


def fit(bits: int, columns: int, group: int, ordered: bool, zeros: bool, exact: bool) -> Fit:
    """`ordered`: by g_idx. `zeros`: zero points other than the middle. `exact`: scale times zero point is a float32."""
    if ordered:
        return Fit("F32", "act-order (g_idx)")
    if columns % BLOCK:
        return Fit("F32", f"rows of {columns} inputs, no multiple of {BLOCK}")
    if group % BLOCK and group < columns:
        return Fit("F32", f"groups of {group} inputs, no multiple of {BLOCK}")
    if bits == 8 and zeros:
        return Fit("F32", "8 bits with zero points")
    if not exact:
        return Fit("F32", "scales of too many digits for their zero points")
    return Fit("G4" if bits == 4 else "G8")


def exact_minima(d: F32, z: F32) -> bool:
    """Whether every d z is a float32."""
    product = d.astype(np.float64) * z
    return bool((product == product.astype(np.float32)).all())


def encoder(kind: str, q: Callable[[int, int], Ints], scales: Scales) -> Encode:
    """`q` gives rows of integers: 0 to 15 for G4, -128 to 127 for G8."""
    encode = {"G4": _g4, "G8": _g8, "F32": _f32}[kind]
    return lambda begin, end: encode(q(begin, end), scales.part(begin, end))


def _spread(values: F32, group: int, columns: int) -> F32:
    """A value a group as a value a block: [rows, blocks, 1]."""
    return values.repeat(-(-group // BLOCK), axis=1)[:, : columns // BLOCK, None]


def _g4(q: Ints, scales: Scales) -> Bytes:
    rows, columns = q.shape
    assert scales.z is not None and scales.order is None
    halves = q.astype(np.uint8, copy=False).reshape(rows, -1, 2, BLOCK // 2)
    out = np.empty((rows, columns // BLOCK, 8 + BLOCK // 2), np.uint8)
    head = np.empty((rows, columns // BLOCK, 2), np.float32)
    head[:, :, :1] = _spread(scales.d, scales.group, columns)
    head[:, :, 1:] = _spread(-(scales.d * scales.z), scales.group, columns)
    out[:, :, :8] = head.view(np.uint8)
    out[:, :, 8:] = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
    return out.reshape(rows, -1)


def _g8(q: Ints, scales: Scales) -> Bytes:
    rows, columns = q.shape
    assert scales.z is None and scales.order is None
    out = np.empty((rows, columns // BLOCK, 4 + BLOCK), np.uint8)
    d = np.ascontiguousarray(_spread(scales.d, scales.group, columns))
    out[:, :, :4] = d.view(np.uint8)
    out[:, :, 4:] = q.astype(np.int8, copy=False).view(np.uint8).reshape(rows, -1, BLOCK)
    return out.reshape(rows, -1)


def _f32(q: Ints, scales: Scales) -> Bytes:
    """d (q - z): the difference is exact, so this rounds once."""
    rows, columns = q.shape
    groups = np.arange(columns) // scales.group if scales.order is None else scales.order
    values = q.astype(np.float32)
    if scales.z is not None:
        values -= scales.z[:, groups]
    values *= scales.d[:, groups]
    return values.view(np.uint8).reshape(rows, -1)
