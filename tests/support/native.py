"""Helpers for tests of the native module: random weights, rotation tables and a small Llama program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo import _native

F32 = NDArray[np.float32]
ISAS = _native.isas()


def vector(values: F32) -> _native.Weight:
    data = np.ascontiguousarray(values, dtype=np.float32)
    return _native.Weight(data, 0, "vector", 1, data.size)


def matrix(rng: np.random.Generator, n: int, k: int, float32: bool = False) -> _native.Weight:
    """A random matrix, packed as bf16, or as float for float32 programs."""
    values = rng.standard_normal((n, k), dtype=np.float32) / np.float32(np.sqrt(k))
    kind = "f32" if float32 else "bf16"
    packed = np.zeros(_native.packed_bytes(kind, n, k), np.uint8)
    _native.pack("F32", kind, n, k, values, packed)
    return _native.Weight(packed, 0, kind, n, k)


def rope_tables(positions: int, rotary: int) -> tuple[F32, F32]:
    half = rotary // 2
    angles = np.arange(positions)[:, None] / 10000.0 ** (np.arange(half) / max(half, 1))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def to_bf16(x: F32) -> F32:
    """Rounds finite values to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def program(
    isa: str,
    threads: int = 1,
    *,
    rows: int = 32,
    logit_rows: int = 8,
    positions: int = 64,
    float32: bool = False,
    naive: bool = False,
    pools: Sequence[_native.KVPool] = (),
    rotary: int = 2,
    ropes: Sequence[tuple[F32, F32]] | None = None,
    integer: bool = False,
) -> _native.Program:
    """One rotary table of width `rotary`, or those given."""
    tables = [rope_tables(positions, rotary)] if ropes is None else list(ropes)
    return _native.Program(isa, threads, rows, logit_rows, positions, float32, naive, list(pools), tables, integer)


def batch(
    tokens: Sequence[int],
    seqs: Sequence[tuple[int, int, int, int]] = (),
    tables: Sequence[Sequence[Sequence[int]]] = (),
    logit_rows: Sequence[int] = (),
    samples: Sequence[_native.Sample] = (),
) -> _native.Batch:
    """Sequences are (row, count, start, store_from); tables one a group, one list of block ids a sequence."""
    b = _native.Batch()
    b.set_tokens(np.asarray(tokens, np.int32))
    if seqs:
        wide = [np.asarray([list(t) for t in table], np.int32).reshape(len(seqs), -1) for table in tables]
        b.set_sequences(np.asarray(seqs, np.int32), wide)
    b.set_logit_rows(np.asarray(logit_rows, np.int32))
    b.set_samples(list(samples))
    return b


def rows_only(count: int) -> _native.Batch:
    """A step of `count` rows for programs that neither embed nor attend."""
    return batch([0] * count)


def bits(x: F32) -> NDArray[np.uint32]:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


@dataclass(frozen=True)
class LlamaShape:
    hidden: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 40
    inner: int = 112
    vocab: int = 67
    float32: bool = False


@dataclass(frozen=True)
class LlamaWeights:
    embed: _native.Weight
    norm: _native.Weight
    layers: tuple[dict[str, _native.Weight], ...]

    @staticmethod
    def draw(rng: np.random.Generator, s: LlamaShape) -> LlamaWeights:
        def mat(n: int, k: int) -> _native.Weight:
            return matrix(rng, n, k, s.float32)

        def vec() -> _native.Weight:
            return vector(rng.uniform(0.5, 1.5, s.hidden).astype(np.float32))

        kv = s.kv_heads * s.head_dim
        layers = tuple(
            {
                "norm1": vec(),
                "q": mat(s.heads * s.head_dim, s.hidden),
                "k": mat(kv, s.hidden),
                "v": mat(kv, s.hidden),
                "o": mat(s.hidden, s.heads * s.head_dim),
                "norm2": vec(),
                "gate": mat(s.inner, s.hidden),
                "up": mat(s.inner, s.hidden),
                "down": mat(s.hidden, s.inner),
            }
            for _ in range(s.layers)
        )
        return LlamaWeights(mat(s.vocab, s.hidden), vec(), layers)


@dataclass(frozen=True)
class Llama:
    """A recorded program, its pages, and the buffers that tests read."""

    program: _native.Program
    pool: _native.KVPool
    logits: int
    taps: tuple[int, ...]


def llama(
    isa: str, threads: int, s: LlamaShape, w: LlamaWeights, *, blocks: int = 8, positions: int = 96, naive: bool = False
) -> Llama:
    pool = _native.KVPool(blocks, 32, s.layers, s.kv_heads, s.head_dim, s.float32)
    p = program(isa, threads, positions=positions, float32=s.float32, naive=naive, pools=[pool], rotary=s.head_dim)
    taps = []
    x = p.embed(w.embed)
    for i, layer in enumerate(w.layers):
        h = p.rms_norm(x, layer["norm1"], 1e-5)
        qkv = p.linear(h, [layer["q"], layer["k"], layer["v"]])
        q = p.rope_and_store(qkv, 0, i, s.heads)
        p.layer_written(i)
        o = p.attention(q, 0, i, s.heads, float(s.head_dim**-0.5))
        x = p.linear(o, [layer["o"]], residual=x)
        h = p.rms_norm(x, layer["norm2"], 1e-5)
        a = p.activate(p.linear(h, [layer["gate"], layer["up"]]), "silu")
        x = p.linear(a, [layer["down"]], residual=x)
        taps.append(p.tap(x))
    h = p.rms_norm(p.gather_rows(x), w.norm, 1e-5)
    logits = p.logits(h, w.embed)
    p.sample(logits, s.vocab)
    return Llama(p, pool, logits, tuple(taps))


def greedy(num_logprobs: int = -1) -> _native.Sample:
    return _native.Sample(0.0, 0, 1.0, 0.0, 1, 0, num_logprobs)
