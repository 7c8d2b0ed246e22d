"""Random rows of every quantised format, with the values that they stand for."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

from octavo import _native
from tests.support.native import F32, to_bf16
from tests.support.products import Packed, fma

Raw = NDArray[np.uint8]

HALVES = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""Where the halves of a block lie: every other byte may be anything."""
GGUF = tuple(HALVES)
NEUTRAL = ("G4", "G8")
QUANTISED = GGUF + NEUTRAL


def block_values(source: str) -> int:
    return 32 if source in NEUTRAL else int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[source]][0])


def block_bytes(source: str) -> int:
    sizes = {"G4": 24, "G8": 36}
    return sizes.get(source) or int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[source]][1])


def random_halves(rng: np.random.Generator, count: int, extreme: bool) -> NDArray[np.float16]:
    """Finite halves: of the sizes that models have, or any at all: the greatest, denormals and both zeros too."""
    if not extreme:
        return (rng.standard_normal(count) * 0.01).astype(np.float16)
    bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    bits[(bits & 0x7C00) == 0x7C00] ^= 0x4000
    special = np.array([0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x0000, 0x8000, 0x03FF, 0x0400], np.uint16)
    chosen = rng.random(count) < 0.3
    bits[chosen] = rng.choice(special, chosen.sum())
    return bits.view(np.float16)


def random_floats(rng: np.random.Generator, count: int, extreme: bool) -> F32:
    values = rng.standard_normal(count, dtype=np.float32) * np.float32(0.01)
    if extreme:
        values = np.ldexp(values, rng.integers(-60, 60, count)).astype(np.float32)
        values[rng.random(count) < 0.1] = np.float32(-0.0)
    return values


def random_rows(rng: np.random.Generator, source: str, n: int, k: int, extreme: bool = True) -> Raw:
    """n rows of k values: random bytes with finite scales."""
    blocks = n * k // block_values(source)
    raw = rng.integers(0, 256, (blocks, block_bytes(source)), dtype=np.uint8)
    for at in HALVES.get(source, ()):
        raw[:, at : at + 2] = random_halves(rng, blocks, extreme)[:, None].view(np.uint8)
    for at in {"G4": (0, 4), "G8": (0,)}.get(source, ()):
        raw[:, at : at + 4] = random_floats(rng, blocks, extreme)[:, None].view(np.uint8)
    return raw.reshape(n, -1)


def values(source: str, raw: Raw, n: int, k: int) -> F32:
    """The float32 values by other code: gguf's for its types, where d q is exact; zeros are +0."""
    if source in GGUF:
        out = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[source])
        return np.asarray(out, np.float32).reshape(n, k) + np.float32(0)
    blocks = raw.reshape(-1, block_bytes(source))
    d = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    if source == "G8":
        return (d * blocks[:, 4:].view(np.int8)).reshape(n, k) + np.float32(0)
    m = np.ascontiguousarray(blocks[:, 4:8]).view(np.float32)
    q = np.concatenate([blocks[:, 8:] & 15, blocks[:, 8:] >> 4], axis=1).astype(np.float32)
    return fma(d, q, np.broadcast_to(m, q.shape)).reshape(n, k) + np.float32(0)


def pack_rows(source: str, kind: str, raw: Raw, n: int, k: int) -> NDArray[np.uint8]:
    data = np.zeros(_native.packed_bytes(kind, n, k), np.uint8)
    _native.pack(source, kind, n, k, np.ascontiguousarray(raw), data)
    return data


def packed_format(rng: np.random.Generator, source: str, n: int, k: int, extreme: bool = True) -> Packed:
    """A random matrix in its own kind. k may be rounded up to whole blocks."""
    k = -(-k // block_values(source)) * block_values(source)
    raw = random_rows(rng, source, n, k, extreme)
    kind = source.lower()
    data = pack_rows(source, kind, raw, n, k)
    exact = values(source, raw, n, k)
    return Packed(_native.Weight(data, 0, kind, n, k), data, to_bf16(exact), exact)
