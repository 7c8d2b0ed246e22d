"""The ops as functions of arrays, float32 in and out.

`rounded` rounds to bfloat16 where the bf16 path of the CPU back end does (docs/numerics.md); sums run in whatever
order NumPy likes, so native kernels equal these within a tolerance, never bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.ops.numeric import F32, round_bf16

TILE = 32
"""Positions that attention visits at once."""


def _keep(x: F32, rounded: bool) -> F32:
    return round_bf16(x) if rounded else x


def _normed(x: F32, weight: F32, eps: float) -> F32:
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps))
    return (x * scale) * weight


def rms_norm(x: F32, weight: F32, eps: float, rounded: bool, residual: F32 | None = None) -> F32:
    y = _normed(x, weight, eps)
    return _keep(y, rounded) if residual is None else residual + y


def part_norm(x: F32, weight: F32, eps: float) -> F32:
    """RMS norm of each run of as many columns as there are weights, never rounded."""
    return _normed(x.reshape(len(x), -1, len(weight)), weight, eps).reshape(x.shape)


def linear(x: F32, weight: F32, bias: F32 | None = None, residual: F32 | None = None, scale: float = 1.0) -> F32:
    """x times the transpose of weight [out, in]; both are already rounded on the bf16 path."""
    y = x @ weight.T
    if bias is not None:
        y = y + bias
    if scale != 1:
        y = y * np.float32(scale)
    return y if residual is None else residual + y


def soft_cap(x: F32, cap: float) -> F32:
    return np.float32(cap) * np.tanh(x / np.float32(cap))


def silu_mul(x: F32, rounded: bool) -> F32:
    gate, up = np.split(x, 2, axis=-1)
    with np.errstate(over="ignore"):
        return _keep((gate / (1 + np.exp(-gate))) * up, rounded)


def gelu_mul(x: F32, rounded: bool) -> F32:
    gate, up = np.split(x, 2, axis=-1)
    inner = np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate**3)
    return _keep(np.float32(0.5) * gate * (1 + np.tanh(inner)) * up, rounded)


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """x [rows, heads, head_dim]; cos and sin [rows, rotary / 2]; pairs are (i, i + rotary / 2)."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate((a * c - b * s, a * s + b * c, rest), axis=-1)


@dataclass(frozen=True)
class View:
    """What a row of attention sees of the keys it is given, and how scores are made of them."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: F32 | None = None
    """One a head."""
    first: int = 0
    """Absolute position of the first key, a multiple of TILE."""


def _scores(q: F32, k: F32, view: View, first: int, start: int) -> F32:
    """[kv heads, rows, group, positions] of q [rows, kv heads, group, dim] and k [positions, kv heads, dim].

    Row r is position start + r, k's first row is position `first`; what a row may not see is -inf.
    """
    s = np.einsum("rhgd,phd->hrgp", q, k, optimize=True) * np.float32(view.scale)
    if view.softcap is not None:
        s = soft_cap(s, view.softcap)
    rows, positions = np.arange(start, start + len(q))[:, None], np.arange(first, first + len(k))[None, :]
    hidden = positions > rows
    if view.window is not None:
        hidden |= positions <= rows - view.window
    s[:, hidden.nonzero()[0], :, hidden.nonzero()[1]] = -np.inf
    return s


def _sink(view: View, top: F32) -> F32:
    """What the sinks add to the sums of exp(s - top), [kv heads, rows, group]."""
    assert view.sinks is not None
    with np.errstate(over="ignore"):
        return np.exp(view.sinks.reshape(top.shape[0], 1, top.shape[2]) - top)


def attention_tiled(q: F32, k: F32, v: F32, view: View, rounded: bool) -> F32:
    """Online softmax over tiles. q [rows, heads, dim] are the last rows of k, v [positions, kv heads, dim]."""
    rows, heads, dim = q.shape
    start = view.first + len(k) - rows
    grouped = q.reshape(rows, k.shape[1], heads // k.shape[1], dim)
    top = np.full((k.shape[1], rows, grouped.shape[2]), -np.inf, np.float32)
    total = np.zeros_like(top)
    out = np.zeros((*top.shape, dim), np.float32)
    for at in range(0, len(k), TILE):
        s = _scores(grouped, k[at : at + TILE], view, view.first + at, start)
        new_top = np.maximum(top, s.max(axis=-1))
        with np.errstate(invalid="ignore"):
            shrink = np.where(np.isneginf(top), np.float32(0), np.exp(top - new_top))
            p = np.where(np.isneginf(s), np.float32(0), np.exp(s - new_top[..., None]))
        p = _keep(p, rounded)
        total = total * shrink + p.sum(axis=-1, dtype=np.float32)
        out = out * shrink[..., None] + np.einsum("hrgp,phd->hrgd", p, v[at : at + TILE], optimize=True)
        top = new_top
    if view.sinks is not None:
        total = total + _sink(view, top)
    return _keep(
        (out / total[..., None]).transpose(1, 0, 2, 3).reshape(rows, heads * dim),
        rounded,
    )


def attention_naive(q: F32, k: F32, v: F32, view: View, rounded: bool) -> F32:
    """The three-step product: all scores, one softmax, one product with v. Shapes as `attention_tiled`."""
    rows, heads, dim = q.shape
    grouped = q.reshape(rows, k.shape[1], heads // k.shape[1], dim)
    s = _scores(grouped, k, view, view.first, view.first + len(k) - rows)
    top = s.max(axis=-1)
    p = np.exp(s - top[..., None])
    total = p.sum(axis=-1, dtype=np.float32)
    if view.sinks is not None:
        total = total + _sink(view, top)
    p = _keep(p / total[..., None], rounded)
    out = np.einsum("hrgp,phd->hrgd", p, v, optimize=True)
    return _keep(out.transpose(1, 0, 2, 3).reshape(rows, heads * dim), rounded)
