"""Small models with every form of the dense ops, on the op set: native against the reference, and against itself.

Tolerances, for logits up to about 5: float32 2e-5 (the order of sums; 4e-6 seen); rounded 0.05 (values near the middle
of two bfloat16 round either way; 0.013 seen).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pytest

from octavo import _native
from octavo.models.spec import Tensor
from octavo.ops.base import OpSet
from octavo.ops.cpu.ops import CpuOps
from octavo.ops.cpu.packing import open_arena, plan_arena
from octavo.ops.numeric import F32, expand_tensor
from octavo.ops.reference.ops import Numerics, Pages, ReferenceBatch, ReferenceOps
from tests.support.attention import ISAS
from tests.support.native import batch, bits, rope_tables

V = TypeVar("V")
HIDDEN, INNER, VOCAB, EPS = 96, 72, 101, 1e-6
TOLERANCES = {True: 2e-5, False: 0.05}
POSITIONS = 96


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    dim: int
    window: int

    @property
    def columns(self) -> tuple[int, int, int]:
        return self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim


SHAPES = [Shape(3, 1, 40, 7), Shape(2, 1, 80, 1), Shape(2, 2, 96, 33), Shape(4, 2, 128, 40), Shape(2, 1, 256, 20)]


def forward(ops: OpSet[V], s: Shape) -> V:
    """A layer as Gemma has it (sandwich norms, a window, soft caps), then one as OLMo 2 and others (post-norms)."""
    x = ops.embed("embed", 9.75)
    qkv = ops.linear(ops.rms_norm(x, "norm", EPS), ["q", "k", "v"])
    q = ops.rope_and_store(ops.qk_norm(qkv, "head_norm", "head_norm", EPS, 0, s.heads), 0, s.heads, 1)
    a = ops.linear(ops.attention(q, 0, s.heads, 0.2, s.window, 5.0), ["o"])
    x = ops.rms_norm(a, "norm", EPS, residual=x)
    h = ops.gelu_mul(ops.linear(ops.rms_norm(x, "norm", EPS), ["gate", "up"]))
    x = ops.rms_norm(ops.linear(h, ["down"]), "norm", EPS, residual=x)

    qkv = ops.linear(ops.cast(x), ["q", "k", "v"], ["q_bias", "kv_bias", "kv_bias"])
    q = ops.rope_and_store(ops.qk_norm(qkv, "q_norm", "k_norm", EPS, 1, s.heads), 1, s.heads, None)
    x = ops.linear(ops.attention(q, 1, s.heads, 0.2, sinks="sinks"), ["o"], residual=x, scale=0.22)
    h = ops.silu_mul(ops.linear(ops.cast(x), ["gate", "up"]))
    x = ops.linear(h, ["down"], residual=x, scale=0.22)
    return ops.logits(ops.rms_norm(ops.gather_rows(x), "norm", EPS), "embed", 0.7, 20.0)


def draw(rng: np.random.Generator, s: Shape) -> list[Tensor]:
    q, k, v = s.columns
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (VOCAB, HIDDEN),
        "q": (q, HIDDEN),
        "k": (k, HIDDEN),
        "v": (v, HIDDEN),
        "o": (HIDDEN, q),
        "gate": (INNER, HIDDEN),
        "up": (INNER, HIDDEN),
        "down": (HIDDEN, INNER),
        "norm": (HIDDEN,),
        "head_norm": (s.dim,),
        "q_norm": (q,),
        "k_norm": (k,),
        "q_bias": (q,),
        "kv_bias": (k,),
        "sinks": (s.heads,),
    }
    tensors = []
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[-1] ** 0.5 if len(shape) == 2 else 3)
        values = values + np.float32(1) if name.endswith("norm") else values
        tensors.append(Tensor(name, "F32", shape, memoryview(values).cast("B")))
    return tensors


Step = tuple[Sequence[int], Sequence[tuple[int, int, int, int]], Sequence[Sequence[int]]]
"""Tokens, sequences, block tables."""


def native(tensors: list[Tensor], s: Shape, float32: bool, naive: bool, isa: str) -> Callable[..., F32]:
    """Runs steps on one program; each gives the logits of all its rows."""
    precision = "float32" if float32 else "bf16"
    plan = plan_arena({t.name: (t.source, t.shape) for t in tensors}, precision)
    arena = open_arena(plan, "drawn", lambda: tensors, None, lambda *_: None)
    pools = [_native.KVPool(8, 32, 1, s.kv_heads, s.dim, float32) for _ in range(2)]
    for pool in pools:
        pool.fill(float("nan"))
    ropes = [rope_tables(POSITIONS, s.dim), rope_tables(POSITIONS, s.dim // 4 * 2)]
    program = _native.Program(isa, 2, 96, 96, POSITIONS, float32, naive, pools, ropes)
    logits = forward(CpuOps(program, arena, [(0, 0), (1, 0)]), s)

    def step(work: Step, alone: bool = False) -> F32:
        tokens, seqs, tables = work
        b = batch(tokens, seqs, [tables, tables], range(len(tokens)))
        if alone:
            for i in range(program.num_ops):
                program.run_op(i, b)
        else:
            program.run(b)
        read: F32 = program.read(logits, len(tokens))
        return read

    return step


def reference(tensors: list[Tensor], s: Shape, float32: bool, naive: bool) -> Callable[[Step], F32]:
    weights = {t.name: expand_tensor(t, not float32) for t in tensors}
    pages = [Pages(8, 32, 1, s.kv_heads, s.dim) for _ in range(2)]
    ropes = [rope_tables(POSITIONS, s.dim), rope_tables(POSITIONS, s.dim // 4 * 2)]
    ops = ReferenceOps(weights, pages, [(0, 0), (1, 0)], Numerics(not float32, naive, ropes))

    def step(work: Step) -> F32:
        tokens, seqs, tables = (np.asarray(a, np.int32) for a in work)
        ops.begin(ReferenceBatch(tokens, seqs, [tables, tables], np.arange(len(tokens), dtype=np.int32), []))
        return forward(ops, s)

    return step


@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_form_of_the_dense_ops_equals_the_reference(
    shape: Shape, float32: bool, rng: np.random.Generator
) -> None:
    tensors = draw(rng, shape)
    a, b = rng.integers(0, VOCAB, 70).tolist(), rng.integers(0, VOCAB, 9).tolist()
    whole: Step = (a, [(0, 70, 0, 0)], [[3, 1, 0]])
    naive = bool(rng.integers(2))
    print(f"naive {naive}")
    want, found = reference(tensors, shape, float32, naive)(whole), []
    for isa in ISAS:
        step = native(tensors, shape, float32, naive, isa)
        found.append(step(whole))
        np.testing.assert_array_equal(bits(step(whole, alone=True)), bits(found[0]))
        at, first = 0, rng.integers(1, 6)
        for count in (int(first), 20, 1, 1, 48 - int(first)):
            neighbour = (b, [(0, 9, 0, 0), (9, count, at, 0)], [[5, 0, 0], [2, 7, 4]])
            rows = step((b + a[at : at + count], *neighbour[1:]))[9:]
            np.testing.assert_array_equal(bits(rows), bits(found[0][at : at + count]))
            at += count
    for other in found[1:]:
        np.testing.assert_array_equal(bits(other), bits(found[0]))
    np.testing.assert_allclose(found[0], want, rtol=0, atol=TOLERANCES[float32])


def test_a_model_without_the_new_forms_records_the_ops_it_did(rng: np.random.Generator) -> None:
    shape = Shape(3, 1, 40, 0)
    tensors = draw(rng, shape)
    arena = open_arena(
        plan_arena({t.name: (t.source, t.shape) for t in tensors}, "bf16"),
        "drawn",
        lambda: tensors,
        None,
        lambda *_: None,
    )
    pool = _native.KVPool(8, 32, 1, 1, 40, False)
    program = _native.Program(ISAS[0], 1, 96, 96, POSITIONS, False, False, [pool], [rope_tables(POSITIONS, 40)])
    ops = CpuOps(program, arena, [(0, 0)])
    x = ops.embed("embed")
    q = ops.rope_and_store(ops.linear(ops.rms_norm(x, "norm", EPS), ["q", "k", "v"]), 0, 3)
    x = ops.linear(ops.attention(q, 0, 3, 0.2), ["o"], residual=x)
    x = ops.linear(ops.silu_mul(ops.linear(ops.rms_norm(x, "norm", EPS), ["gate", "up"])), ["down"], residual=x)
    ops.sample(ops.logits(ops.rms_norm(ops.gather_rows(x), "norm", EPS), "embed"), VOCAB)
    layer = ["rms_norm", "linear", "rope_and_store", "attention", "linear", "rms_norm", "linear", "activate", "linear"]
    assert program.op_names == ["embed", *layer, "gather_rows", "rms_norm", "linear", "sample"]
