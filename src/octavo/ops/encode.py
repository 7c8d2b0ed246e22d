"""Floats as files hold them: the other direction of `numeric.expand`, for conversion.

The quantisers are the plain ones of the formats' own tools (each block by its largest value, or by its span). A float
that its new type cannot hold is rounded to nearest even. Owns nothing; off switch: none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.ops.numeric import F32, round_bf16

Bytes = npt.NDArray[np.uint8]


def encode(kind: str, values: F32) -> Bytes:
    """Rows [rows, columns] as bytes [rows, bytes a row]; whole blocks a row."""
    rows = len(values)
    values = np.ascontiguousarray(values, np.float32)
    if kind == "F32":
        return values.view(np.uint8).reshape(rows, -1)
    if kind == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint8).reshape(rows, -1)
    if kind == "BF16":
        return (round_bf16(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8).reshape(rows, -1)
    return _BLOCKS[kind](values.reshape(-1, 32)).reshape(rows, -1)


def _inverse(d: F32) -> F32:
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _half(values: F32) -> Bytes:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint8)


def _nibbles(q: Bytes) -> Bytes:
    return q[:, :16] & np.uint8(15) | q[:, 16:] << np.uint8(4)


def _fifth_bits(q: Bytes) -> Bytes:
    return np.packbits(q >> np.uint8(4), axis=1, bitorder="little")


def _q8_0(x: F32) -> Bytes:
    """Halves are rounded away from zero."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(d)
    size = np.abs(scaled)
    whole = np.floor(size)
    q = np.sign(scaled) * (whole + np.floor(2 * (size - whole)))
    return np.concatenate((_half(d), q.astype(np.int8).view(np.uint8)), axis=1)


def _signed(x: F32, bits: int) -> tuple[F32, Bytes]:
    """The value of largest size becomes the lowest integer exactly."""
    half = 1 << (bits - 1)
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = largest / np.float32(-half)
    q = np.trunc(x * _inverse(d) + np.float32(half + 0.5)).astype(np.uint8).clip(0, 2 * half - 1)
    return d, q


def _spanned(x: F32, bits: int) -> tuple[F32, F32, Bytes]:
    """From the lowest value to the highest."""
    top = (1 << bits) - 1
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    d = (high - low) / np.float32(top)
    q = np.trunc((x - low) * _inverse(d) + np.float32(0.5)).astype(np.uint8).clip(0, top)
    return d, low, q


def _q4_0(x: F32) -> Bytes:
    d, q = _signed(x, 4)
    return np.concatenate((_half(d), _nibbles(q)), axis=1)


def _q4_1(x: F32) -> Bytes:
    d, low, q = _spanned(x, 4)
    return np.concatenate((_half(d), _half(low), _nibbles(q)), axis=1)


def _q5_0(x: F32) -> Bytes:
    d, q = _signed(x, 5)
    return np.concatenate((_half(d), _fifth_bits(q), _nibbles(q)), axis=1)


def _q5_1(x: F32) -> Bytes:
    d, low, q = _spanned(x, 5)
    return np.concatenate((_half(d), _half(low), _fifth_bits(q), _nibbles(q)), axis=1)


_BLOCKS: dict[str, Callable[[F32], Bytes]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
}
TYPES = ("F32", "F16", "BF16", *_BLOCKS)
"""What can be written."""
