"""Numbers as files hold them, as NumPy floats; and rounding to bfloat16."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.ops.base import SourceTensor
from octavo.ops.blocks import FORMATS

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
SOURCES = (*FLOAT_BYTES, *FORMATS)
"""Every type that `expand` knows."""

_PIECE = 1 << 18
"""Values expanded at a time: temporaries stay near the caches, whatever the tensor's size."""


def row_bytes(source: str, columns: int) -> int:
    """Bytes of one row; rows are whole blocks."""
    if source in FLOAT_BYTES:
        return FLOAT_BYTES[source] * columns
    form = FORMATS[source]
    assert columns % form.values == 0, f"rows of {columns} values are no whole blocks of {source}"
    return columns // form.values * form.nbytes


def round_bf16(x: F32) -> F32:
    """The nearest bfloat16, ties to even, as a float; NaN becomes the quiet NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.uint32(0x7FC00000), rounded).view(np.float32)


@np.errstate(invalid="ignore", over="ignore")
def expand(source: str, shape: tuple[int, ...], data: memoryview) -> F32:
    """A tensor's values: the float32 that the format's own arithmetic gives, d q + m rounded once.

    Takes a few megabytes beside its result. For GGUF's formats d q is exact, so that rounding the product too (as
    other readers do) changes no bit.
    """
    if source not in SOURCES:
        raise ValueError(f"tensor type {source} is not one of {', '.join(SOURCES)}")
    out = np.empty(shape, np.float32)
    flat = out.reshape(-1)
    raw = np.frombuffer(data, np.uint8)
    if source in FLOAT_BYTES:
        _expand_floats(source, raw, flat)
        return out
    form = FORMATS[source]
    blocks = raw.reshape(-1, form.nbytes)
    step = _PIECE // form.values
    for start in range(0, len(blocks), step):
        d, q, m = form.parts(blocks[start : start + step])
        values = d[:, :, None] * q if m is None else _fma(d[:, :, None], q, m[:, :, None], source == "G4")
        flat[start * form.values :][: values.size] = values.reshape(-1)
    return out


def _expand_floats(source: str, raw: npt.NDArray[np.uint8], out: F32) -> None:
    if source == "BF16":
        words = raw.view(np.uint16)
        for start in range(0, len(words), _PIECE):
            piece = words[start : start + _PIECE].astype(np.uint32) << np.uint32(16)
            out[start : start + _PIECE] = piece.view(np.float32)
    else:
        out[:] = raw.view(np.float32 if source == "F32" else np.float16)


def _fma(d: F32, q: F32, m: F32, inexact: bool) -> F32:
    """d q + m rounded once. `inexact`: d q may not be a float32 (it always is a double)."""
    if not inexact:
        return d * q + m
    product = d.astype(np.float64) * q
    total = product + m
    tail = total - product
    error = (product - (total - tail)) + (m - tail)
    # Where the double was rounded, its last bit is made odd towards the true sum: then the second rounding is right.
    bits = total.view(np.int64)
    even = (error != 0) & (bits & 1 == 0)
    bits += np.where(even, np.where((error > 0) == (total > 0), 1, -1), 0)
    return total.astype(np.float32)


def expand_rounded(source: str, shape: tuple[int, ...], data: memoryview) -> F32:
    """A matrix as the bf16 path multiplies with it (docs/numerics.md): rounded to bfloat16, a zero is +0."""
    values = expand(source, shape, data)
    flat = values.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        piece = round_bf16(flat[start : start + _PIECE])
        flat[start : start + _PIECE] = piece if source in FLOAT_BYTES else piece + np.float32(0)
    return values


def expand_tensor(tensor: SourceTensor, rounded: bool) -> F32:
    """A tensor as the reference uses it: matrices rounded to bfloat16 in the rounded mode, vectors never."""
    matrix = len(tensor.shape) > 1
    return (expand_rounded if rounded and matrix else expand)(tensor.source, tensor.shape, tensor.data)
