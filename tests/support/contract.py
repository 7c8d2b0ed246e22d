"""The arithmetic contract (docs/numerics.md) once more, in NumPy: what kernels must give, to the bit.

Slow and direct. `fma` goes through the 64-bit mantissa of long double, so that it rounds once but for one case in
about 2^40.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

F32 = NDArray[np.float32]
TINY = np.float32(2.0**-126)


def flush(x: ArrayLike) -> F32:
    """Denormals are zero."""
    y = np.asarray(x, np.float32)
    return np.where(np.abs(y) < TINY, np.copysign(np.float32(0), y), y)


def fma(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> F32:
    wide = np.asarray(x, np.longdouble) * np.asarray(y, np.longdouble) + np.asarray(z, np.longdouble)
    return flush(wide.astype(np.float32))


def const(x: float) -> np.float32:
    return np.float32(x)


def tree(lanes: F32) -> np.float32:
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half : 2 * half]
    return np.float32(lanes[0])


def lane_sum(x: F32) -> np.float32:
    padded = np.zeros(-(-len(x) // 16) * 16, np.float32)
    padded[: len(x)] = x
    lanes = np.zeros(16, np.float32)
    for row in padded.reshape(-1, 16):
        lanes = lanes + row
    return tree(lanes)


def exp(x: ArrayLike) -> F32:
    x = np.asarray(x, np.float32)
    c = np.minimum(np.maximum(x, const(-86.5)), const(88.72283))
    n = np.rint(c * const(1.44269504)).astype(np.float32)
    r = fma(-n, const(0.693145752), c)
    r = fma(-n, const(1.42860677e-6), r)
    p = np.full_like(c, 1.38142216e-3)
    for k in (8.36889912e-3, 4.16684039e-2, 1.66665196e-1, 0.499999940, 1.0, 1.0):
        p = fma(p, r, const(k))
    y = (p * const(2)) * np.exp2(n.astype(np.float64) - 1).astype(np.float32)
    return np.where(x < const(-86.5), const(0), np.where(x > const(88.72283), const(np.inf), y)).astype(np.float32)


def log_core(f: F32, n: F32) -> F32:
    s = f / (const(2) + f)
    z = s * s
    t = np.full_like(f, 0.181818182)
    for k in (0.222222222, 0.285714286, 0.4, 0.666666667):
        t = fma(t, z, const(k))
    t = t * z
    half = (const(0.5) * f) * f
    low = fma(n, const(1.42860677e-6), s * (half + t))
    return fma(n, const(0.693145752), f - (half - low))


def log_split(x: F32) -> tuple[F32, F32]:
    u = np.ascontiguousarray(x, np.float32).view(np.int32) + np.int32(0x3F800000 - 0x3F3504F3)
    n = ((u >> 23) - 127).astype(np.float32)
    return ((u & 0x007FFFFF) + np.int32(0x3F3504F3)).view(np.float32) - const(1), n


def log(x: ArrayLike) -> F32:
    """Positive normal values."""
    return log_core(*log_split(np.atleast_1d(np.asarray(x, np.float32))))


def log1p(x: F32) -> F32:
    u = const(1) + x
    return log_core(*log_split(u)) + (x - (u - const(1))) / u


def to_bf16(x: F32) -> F32:
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def product(a: F32, b: F32, c: ArrayLike, float32: bool) -> F32:
    """c + a [k] x b [k, n] as `linear` adds: blocks of 32, even and odd chains; one chain in float32."""
    c = np.broadcast_to(np.asarray(c, np.float32), b.shape[1:]).copy()
    if float32:
        for x, row in zip(a, b, strict=True):
            c = fma(x, row, c)
        return c
    short = -len(a) % 32
    a, b = np.pad(a, (0, short)), np.pad(b, ((0, short), (0, 0)))
    for i in range(0, len(a), 32):
        even, odd = np.zeros_like(c), np.zeros_like(c)
        for j in range(i, i + 32, 2):
            even, odd = fma(a[j], b[j], even), fma(a[j + 1], b[j + 1], odd)
        c = c + (even + odd)
    return c


def soft_cap(x: F32, cap: float) -> F32:
    y = x / const(cap)
    t = exp(np.abs(y) * const(-2))
    return const(cap) * np.copysign((const(1) - t) / (const(1) + t), y)


@dataclass(frozen=True)
class Form:
    """How scores are made, as `ops.base.OpSet.attention` takes it; `sink` is the head's."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sink: float | None = None


def attention_row(q: F32, key: F32, value: F32, form: Form, float32: bool) -> F32:
    """Tiled attention of the row at the last position of key and value, [positions, head_dim]."""
    n, dims = key.shape
    seen = 0 if form.window is None else max(0, n - form.window)
    big_m, big_l, big_o = const(-np.inf), const(0), np.zeros(dims, np.float32)
    for start in range(seen // 512 * 512, n, 512):
        m, lanes, o = const(-np.inf), np.zeros(16, np.float32), np.zeros(dims, np.float32)
        for t in range(max(start, seen // 32 * 32), min(start + 512, n), 32):
            k, v = (np.pad(x[t : t + 32], ((0, max(0, t + 32 - n)), (0, 0))) for x in (key, value))
            s = product(q, k.T, 0, float32) * const(form.scale)
            s = s if form.softcap is None else soft_cap(s, form.softcap)
            s[n - t :] = -np.inf
            s[: max(0, seen - t)] = -np.inf
            new = max(m, s.max())
            a = exp(m - new) if m > -np.inf else const(0)
            p = exp(s - new)
            p = p if float32 else to_bf16(p)
            lanes = fma(lanes, a, p[:16] + p[16:])
            o = product(p, v, o * a, float32)
            m = new
        total = tree(lanes)
        if start == seen // 512 * 512:
            big_m, big_l, big_o = m, total, o
            continue
        new = max(big_m, m)
        old_f, new_f = exp(big_m - new), exp(m - new)
        big_o, big_l = fma(o, new_f, big_o * old_f), fma(total, new_f, big_l * old_f)
        big_m = new
    if form.sink is not None:
        big_l = big_l + exp(const(form.sink) - big_m)
    out = np.asarray(big_o / big_l, np.float32)
    return out if float32 else to_bf16(out)
