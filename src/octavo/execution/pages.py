"""Pages in their wire form (types.BlockPages): its shapes, and NumPy's pages; native ones are in cpu.py.

Owns nothing: the pools are the forward pass's. A page's wire form is the same on every back end that stores the same
numbers, [layer][key, value][head][position][dim]. Off switch: none; nobody asks unless a tier or a transfer does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from octavo.models.spec import ModelSpec
from octavo.ops.reference.ops import Pages
from octavo.types import BlockShape, KVGroupSpec


def block_shapes(
    spec: ModelSpec, groups: Sequence[KVGroupSpec], block_size: int, precision: str
) -> tuple[BlockShape, ...]:
    """The wire form of a block of each group."""
    return tuple(
        BlockShape(dtype=precision, layers=len(group.layers), heads=spec.kv_heads, tokens=block_size, dim=spec.head_dim)
        for group in groups
    )


class ReferencePages:
    """NumPy's pages, which hold floats; those of the bf16 path are rounded already."""

    def __init__(self, shapes: tuple[BlockShape, ...], pages: Sequence[Pages]) -> None:
        self.shapes = shapes
        self._pages = pages

    def export_block(self, group: int, block: int, wire: memoryview) -> None:
        pages, shape = self._pages[group], self.shapes[group]
        both = np.stack([pages.key[block], pages.value[block]], axis=1).transpose(0, 1, 3, 2, 4)
        floats = np.ascontiguousarray(both)
        data = (floats.view(np.uint32) >> 16).astype(np.uint16) if shape.dtype == "bf16" else floats
        wire[: shape.bytes] = data.reshape(-1).view(np.uint8).data

    def import_block(self, group: int, block: int, wire: memoryview) -> None:
        pages, shape = self._pages[group], self.shapes[group]
        rounded = shape.dtype == "bf16"
        data = np.frombuffer(wire, np.uint16 if rounded else np.float32, count=shape.bytes // (2 if rounded else 4))
        floats = (data.astype(np.uint32) << 16).view(np.float32) if rounded else data
        both = floats.reshape(shape.layers, 2, shape.heads, shape.tokens, shape.dim).transpose(0, 1, 3, 2, 4)
        pages.key[block], pages.value[block] = both[:, 0], both[:, 1]

    def checksum(self, wire: memoryview) -> int:
        return int.from_bytes(hashlib.blake2b(wire, digest_size=8).digest(), "little")
