"""The wire form of a block: what goes out is what the pages hold, and comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import _native
from octavo.execution.cpu import NativePages
from octavo.execution.pages import ReferencePages
from octavo.ops.numeric import round_bf16
from octavo.ops.reference.ops import Pages
from octavo.types import BlockShape

SHAPES = st.builds(
    BlockShape,
    dtype=st.sampled_from(["bf16", "float32"]),
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    tokens=st.sampled_from([32, 64, 96]),
    dim=st.one_of(st.sampled_from([16, 32, 64, 80]), st.integers(1, 48)),
)


def native(shape: BlockShape, blocks: int = 3) -> tuple[NativePages, _native.KVPool]:
    pool = _native.KVPool(blocks, shape.tokens, shape.layers, shape.heads, shape.dim, shape.dtype == "float32")
    return NativePages((shape,), [pool]), pool


def wire_of(shape: BlockShape, seed: int) -> tuple[np.ndarray, memoryview]:
    """Values [layer, key or value, head, position, dim] that both precisions hold exactly, and their wire form."""
    values = np.random.default_rng(seed).standard_normal(
        (shape.layers, 2, shape.heads, shape.tokens, shape.dim), dtype=np.float32
    )
    values = round_bf16(values)
    data = (values.view(np.uint32) >> 16).astype(np.uint16) if shape.dtype == "bf16" else values
    return values, memoryview(bytearray(data.tobytes()))


@given(shape=SHAPES, seed=st.integers(0, 1 << 32), block=st.integers(0, 2))
def test_pages_hold_what_the_wire_form_says_and_give_it_back(shape: BlockShape, seed: int, block: int) -> None:
    values, wire = wire_of(shape, seed)
    pages, pool = native(shape)
    pool.fill(float("nan"))
    pages.import_block(0, block, wire)
    for layer in range(shape.layers):
        key, value = (np.empty((shape.tokens, shape.heads, shape.dim), np.float32) for _ in range(2))
        pool.read(layer, block, key, value)
        assert np.array_equal(key, values[layer, 0].transpose(1, 0, 2))
        assert np.array_equal(value, values[layer, 1].transpose(1, 0, 2))
    again = bytearray(shape.bytes)
    pages.export_block(0, block, memoryview(again))
    assert again == bytes(wire)
    others = bytearray(shape.bytes)
    pages.export_block(0, (block + 1) % 3, memoryview(others))
    dtype = np.float32 if shape.dtype == "float32" else np.uint16
    untouched = np.frombuffer(others, dtype)
    assert np.isnan(untouched).all() if dtype is np.float32 else (untouched == 0x7FC0).all()


@given(shape=SHAPES, seed=st.integers(0, 1 << 32))
def test_both_back_ends_have_one_wire_form(shape: BlockShape, seed: int) -> None:
    _, wire = wire_of(shape, seed)
    reference = ReferencePages((shape,), [Pages(2, shape.tokens, shape.layers, shape.heads, shape.dim)])
    pages, _ = native(shape)
    pages.import_block(0, 1, wire)
    reference.import_block(0, 1, wire)
    for one in (pages, reference):
        out = memoryview(bytearray(shape.bytes))
        one.export_block(0, 1, out)
        assert out == wire


def test_buffers_that_are_too_small_and_blocks_that_are_not_there_are_refused() -> None:
    shape = BlockShape(dtype="bf16", layers=1, heads=1, tokens=32, dim=16)
    pages, pool = native(shape)
    for move in (pool.export_block, pool.import_block):
        with pytest.raises(ValueError, match="are needed"):
            move(0, bytearray(shape.bytes - 1))
        for block in (-1, 3):
            with pytest.raises(ValueError, match="outside the pool"):
                move(block, bytearray(shape.bytes))
    assert pages.checksum(memoryview(b"a" * 64)) != pages.checksum(memoryview(b"a" * 63 + b"b"))
