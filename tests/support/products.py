"""Packed random matrices of every kind, and the products' contract evaluated step by step in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from tests.support.native import F32, to_bf16

F64 = NDArray[np.float64]
SOURCES = {"bf16": "BF16", "q8_0": "Q8_0", "q4_1": "Q4_1", "f32": "F32"}


@dataclass(frozen=True)
class Packed:
    """A packed matrix with its values as the bf16 product (`rounded`) and the float32 product (`exact`) read them."""

    weight: _native.Weight
    data: NDArray[np.uint8]
    rounded: F32
    exact: F32


def blocks_q8(rng: np.random.Generator, n: int, k: int) -> tuple[NDArray[np.uint8], F64]:
    """Rows of Q8_0 blocks, scales of both signs and some denormal, with their exact values."""
    d = (rng.standard_normal((n, k // 32)) * 0.02).astype(np.float16)
    d[rng.random(d.shape) < 0.1] = np.float16(3e-7)
    q = rng.integers(-128, 128, (n, k // 32, 32), dtype=np.int8)
    q[rng.random(q.shape) < 0.1] = 0
    raw = np.concatenate([d[..., None].view(np.uint8), q.view(np.uint8)], axis=-1)
    return raw.reshape(n, -1), (d.astype(np.float64)[..., None] * q).reshape(n, k)


def blocks_q4(rng: np.random.Generator, n: int, k: int) -> tuple[NDArray[np.uint8], F64]:
    """Rows of Q4_1 blocks: first half of a block in low nibbles, second half in high ones."""
    d = (rng.standard_normal((n, k // 32)) * 0.02).astype(np.float16)
    m = (rng.standard_normal((n, k // 32)) * 0.1).astype(np.float16)
    m[rng.random(m.shape) < 0.2] = np.float16(-0.0)
    q = rng.integers(0, 16, (n, k // 32, 32), dtype=np.uint8)
    nibbles = q[..., :16] | (q[..., 16:] << 4)
    raw = np.concatenate([d[..., None].view(np.uint8), m[..., None].view(np.uint8), nibbles], axis=-1)
    values = d.astype(np.float64)[..., None] * q + m.astype(np.float64)[..., None]
    return raw.reshape(n, -1), values.reshape(n, k)


def source_rows(rng: np.random.Generator, kind: str, n: int, k: int) -> tuple[NDArray[np.uint8], F64]:
    """Rows in the source format of `kind`, and the values that they stand for."""
    if kind == "q8_0":
        return blocks_q8(rng, n, k)
    if kind == "q4_1":
        return blocks_q4(rng, n, k)
    values = rng.standard_normal((n, k), dtype=np.float32) * np.float32(0.05)
    if kind == "f32":
        return values.view(np.uint8), values.astype(np.float64)
    values = to_bf16(values)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), values.astype(np.float64)


def packed(rng: np.random.Generator, kind: str, n: int, k: int) -> Packed:
    raw, values = source_rows(rng, kind, n, k)
    data = np.zeros(_native.packed_bytes(kind, n, k), np.uint8)
    _native.pack(SOURCES[kind], kind, n, k, np.ascontiguousarray(raw), data)
    exact = values.astype(np.float32) + np.float32(0)
    return Packed(_native.Weight(data, 0, kind, n, k), data, to_bf16(exact), exact)


def fma(x: F32, w: F32, c: F32) -> F32:
    """x * w + c rounded once. The product is exact in float64; the sum is rounded to odd there, so that the second
    rounding to float32 is the right one."""
    p = x.astype(np.float64) * w.astype(np.float64)
    a = np.broadcast_to(c.astype(np.float64), p.shape)
    s = p + a
    back = s - p
    error = (p - (s - back)) + (a - back)
    even = (s.view(np.uint64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(s, toward), s).astype(np.float32)


def product_bf16(x: F32, w: F32) -> F32:
    """Blocks of 32 inputs: an even and an odd chain, then their sum onto the total."""
    rows, k = x.shape
    pad = -k % 32
    x, w = np.pad(x, ((0, 0), (0, pad))), np.pad(w, ((0, 0), (0, pad)))
    total = np.zeros((rows, w.shape[0]), np.float32)
    for block in range(0, k + pad, 32):
        chains = [np.zeros_like(total), np.zeros_like(total)]
        for i in range(32):
            chains[i % 2] = fma(x[:, block + i, None], w[None, :, block + i], chains[i % 2])
        total = total + (chains[0] + chains[1])
    return total


def product_f32(x: F32, w: F32) -> F32:
    total = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for i in range(x.shape[1]):
        total = fma(x[:, i, None], w[None, :, i], total)
    return total
