"""Blocks for the tests of tiers: pages in NumPy, chains of keys, contents that follow from the key."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octavo.execution.pages import ReferencePages
from octavo.kvcache.keys import KeyChain, KeyContext, pack_tokens
from octavo.kvcache.tiers.store import DiskStore
from octavo.kvcache.tiers.wire import Cached, header_bytes
from octavo.ops.reference.ops import Pages
from octavo.types import BlockShape

SHAPE = BlockShape(dtype="bf16", layers=2, heads=1, tokens=32, dim=2)
WEIGHTS, NUMERICS = "weights", "numerics"


def pages(num_blocks: int = 16, shape: BlockShape = SHAPE) -> ReferencePages:
    return ReferencePages((shape,), [Pages(num_blocks, shape.tokens, shape.layers, shape.heads, shape.dim)])


def store(directory: Path, max_bytes: int = 1 << 30, weights: str = WEIGHTS) -> DiskStore:
    return DiskStore(directory, max_bytes, weights, NUMERICS, pages())


def chain(count: int, first_token: int = 0) -> tuple[KeyChain, list[int]]:
    """The keys of `count` blocks, and their tokens."""
    tokens = [first_token + i for i in range(count * SHAPE.tokens)]
    return KeyChain(KeyContext(WEIGHTS, NUMERICS, SHAPE.tokens)), tokens


def cached(keys: KeyChain, tokens: list[int], index: int, block: int = 0) -> Cached:
    """Block `index` of a prompt."""
    packed = pack_tokens(tokens[index * SHAPE.tokens : (index + 1) * SHAPE.tokens])
    return Cached(keys.key(index, tokens), keys.above(index, tokens), packed, block)


def content(key: bytes, shape: BlockShape = SHAPE) -> bytes:
    """The wire form that the tests give a block."""
    return np.random.default_rng(list(key)).integers(0, 256, shape.bytes, dtype=np.uint8).tobytes()


def file_of(found: Cached, wire: bytes, shape: BlockShape = SHAPE) -> memoryview:
    """What `DiskStore.write` takes."""
    return memoryview(bytearray(header_bytes(shape)) + bytearray(wire))
