"""Blocks of quantised weights, taken apart: what each format's bytes mean.

A format is a function from blocks (one a row, bytes) to three arrays: d [blocks, groups], q [blocks, groups, values]
and m [blocks, groups] or None. Each value of the file is d q + m. Multipliers of groups are within d and m: their
products with the block's half-precision scales are exact in float32. Owns nothing; off switch: none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Parts = tuple[F32, F32, F32 | None]


@dataclass(frozen=True)
class BlockFormat:
    """Sizes of a block, and how to take blocks apart."""

    values: int
    nbytes: int
    parts: Callable[[Bytes], Parts]


def _half(blocks: Bytes, at: int) -> F32:
    """The half-precision number at byte `at` of every block, as a column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _fields(raw: Bytes, run: int, bits: int) -> Bytes:
    """Fields of `bits` bits: for each run of bytes the lowest field of all its bytes, then the next one of all."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = (raw.reshape(len(raw), -1, 1, run) >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(len(raw), -1)


def _groups(q: npt.NDArray[np.generic], size: int) -> F32:
    return q.astype(np.float32).reshape(len(q), -1, size)


def _q8_0(b: Bytes) -> Parts:
    return _half(b, 0), _groups(b[:, 2:].view(np.int8), 32), None


def _q4_0(b: Bytes) -> Parts:
    return _half(b, 0), _groups(_fields(b[:, 2:], 16, 4), 32) - np.float32(8), None


def _q4_1(b: Bytes) -> Parts:
    return _half(b, 0), _groups(_fields(b[:, 4:], 16, 4), 32), _half(b, 2)


def _five_bits(b: Bytes, at: int) -> F32:
    """A word of 32 fifth bits, then 32 nibbles."""
    high = np.unpackbits(b[:, at : at + 4], axis=1, bitorder="little")
    return _groups(_fields(b[:, at + 4 :], 16, 4) | high << 4, 32)


def _q5_0(b: Bytes) -> Parts:
    return _half(b, 0), _five_bits(b, 2) - np.float32(16), None


def _q5_1(b: Bytes) -> Parts:
    return _half(b, 0), _five_bits(b, 4), _half(b, 2)


def _q2_k(b: Bytes) -> Parts:
    scale, minimum = b[:, :16] & 15, b[:, :16] >> 4
    return _half(b, 80) * scale, _groups(_fields(b[:, 16:80], 32, 2), 16), -(_half(b, 82) * minimum)


def _q3_k(b: Bytes) -> Parts:
    """The third bit is stored inverted: where it is missing, 4 is taken off."""
    q = (_fields(b[:, 32:96], 32, 2) | _fields(b[:, :32], 32, 1) << 2).astype(np.int8) - np.int8(4)
    scale = (_fields(b[:, 96:104], 8, 4) | _fields(b[:, 104:108], 4, 2) << 4).astype(np.int8) - np.int8(32)
    return _half(b, 108) * scale, _groups(q, 16), None


def _scales_k(b: Bytes) -> tuple[F32, F32]:
    """d and m of the eight groups of Q4_K and Q5_K: six bits each, the last four pairs spread over three bytes."""
    first, second, third = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.concatenate((first & 63, third & 15 | first >> 6 << 4), axis=1)
    minimum = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=1)
    return _half(b, 0) * scale, -(_half(b, 2) * minimum)


def _q4_k(b: Bytes) -> Parts:
    d, m = _scales_k(b)
    return d, _groups(_fields(b[:, 16:], 32, 4), 32), m


def _q5_k(b: Bytes) -> Parts:
    d, m = _scales_k(b)
    return d, _groups(_fields(b[:, 48:], 32, 4) | _fields(b[:, 16:48], 32, 1) << 4, 32), m


def _q6_k(b: Bytes) -> Parts:
    q = (_fields(b[:, :128], 64, 4) | _fields(b[:, 128:192], 32, 2) << 4).astype(np.int8) - np.int8(32)
    return _half(b, 208) * b[:, 192:208].view(np.int8), _groups(q, 16), None


_NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""What the nibbles of the IQ4 formats stand for."""


def _iq4_nl(b: Bytes) -> Parts:
    return _half(b, 0), _groups(_NONLINEAR[_fields(b[:, 2:], 16, 4)], 32), None


def _iq4_xs(b: Bytes) -> Parts:
    low = (b[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(len(b), 8)
    high = (b[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(len(b), 8)
    scale = (low | high << 4).astype(np.int8) - np.int8(32)
    return _half(b, 0) * scale, _groups(_NONLINEAR[_fields(b[:, 8:], 16, 4)], 32), None


def _floats(blocks: Bytes, at: int) -> F32:
    return np.ascontiguousarray(blocks[:, at : at + 4]).view(np.float32)


def _g4(b: Bytes) -> Parts:
    return _floats(b, 0), _groups(_fields(b[:, 8:], 16, 4), 32), _floats(b, 4)


def _g8(b: Bytes) -> Parts:
    return _floats(b, 0), _groups(b[:, 4:].view(np.int8), 32), None


FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "Q2_K": BlockFormat(256, 84, _q2_k),
    "Q3_K": BlockFormat(256, 110, _q3_k),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k),
    "Q6_K": BlockFormat(256, 210, _q6_k),
    "IQ4_NL": BlockFormat(32, 18, _iq4_nl),
    "IQ4_XS": BlockFormat(256, 136, _iq4_xs),
    "G4": BlockFormat(32, 24, _g4),
    "G8": BlockFormat(32, 36, _g8),
}
"""GGUF's formats, and the two that quantised safetensors are turned into: "G4" (float32 d and m, 32 nibbles) and "G8"
(float32 d, 32 signed bytes)."""
