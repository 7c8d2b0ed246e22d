"""Numbers as files hold them, as NumPy floats; and rounding to bfloat16."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.ops.base import SourceTensor

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

_GROUP = 32
"""Values a block of the quantised formats."""


def round_bf16(x: F32) -> F32:
    """The nearest bfloat16, ties to even, as a float; NaN becomes the quiet NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.uint32(0x7FC00000), rounded).view(np.float32)


def expand(source: str, shape: tuple[int, ...], data: memoryview) -> F32:
    """A tensor's values. Quantised ones are rounded once, as by a fused multiply-add."""
    raw = np.frombuffer(data, np.uint8)
    if source == "F32":
        return raw.view(np.float32).reshape(shape).copy()
    if source == "F16":
        return raw.view(np.float16).astype(np.float32).reshape(shape)
    if source == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if source == "Q8_0":
        blocks = raw.reshape(-1, 2 + _GROUP)
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return (scale * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(shape)
    if source == "Q4_1":
        blocks = raw.reshape(-1, 4 + _GROUP // 2)
        pair = blocks[:, :4].copy().view(np.float16).astype(np.float64)
        nibbles = np.concatenate((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), axis=1)
        return (pair[:, :1] * nibbles + pair[:, 1:]).astype(np.float32).reshape(shape)
    raise ValueError(f"tensor type {source} is not one of F32, F16, BF16, Q8_0, Q4_1")


def expand_tensor(tensor: SourceTensor, rounded: bool) -> F32:
    """A tensor as the reference uses it: matrices rounded to bfloat16 in the rounded mode, vectors never."""
    values = expand(tensor.source, tensor.shape, tensor.data)
    return round_bf16(values) if rounded and len(tensor.shape) > 1 else values
