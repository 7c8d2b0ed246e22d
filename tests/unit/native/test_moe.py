"""Mixtures of experts: docs/numerics.md to the bit on every instruction set, whatever rows are beside a row."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from octavo import _native
from tests.support import contract
from tests.support.formats import QUANTISED, packed_format
from tests.support.native import F32, ISAS, bits, matrix, program, rows_only, to_bf16, vector
from tests.support.products import Packed, packed, product_bf16, product_f32

ALL_ISAS = (*ISAS, "amx-emulated") if "avx2" in ISAS else tuple(ISAS)
BF16_KINDS = ["bf16", "q8_0", "q4_1"]


@dataclass(frozen=True)
class Layer:
    """A router and its experts with how they are used."""

    router: Packed
    experts: tuple[tuple[Packed, Packed, Packed], ...]
    top_k: int
    renormalise: bool = True
    act: str = "silu"
    float32: bool = False

    @property
    def hidden(self) -> int:
        return self.router.weight.k

    def weights(self) -> list[list[_native.Weight]]:
        return [[part.weight for part in expert] for expert in self.experts]


def draw(
    rng: np.random.Generator, hidden: int, inner: int, experts: int, top_k: int, float32: bool, kinds: Sequence[str]
) -> Layer:
    """Every matrix of a random kind of `kinds`; the router as files have it."""

    def mat(n: int, k: int) -> Packed:
        return packed(rng, str(rng.choice(kinds)), n, k)

    parts = tuple((mat(inner, hidden), mat(inner, hidden), mat(hidden, inner)) for _ in range(experts))
    router = packed(rng, "f32" if float32 else "bf16", experts, hidden)
    renormalise, act = bool(rng.integers(2)), str(rng.choice(["silu", "gelu"]))
    return Layer(router, parts, top_k, renormalise, act, float32)


class Run:
    """One recorded moe op with a residual."""

    def __init__(self, isa: str, threads: int, layer: Layer, rows: int) -> None:
        self.program = program(isa, threads, rows=rows, float32=layer.float32)
        self.src = self.program.input(layer.hidden, not layer.float32)
        self.residual = self.program.input(layer.hidden, False)
        self.out = self.program.moe(
            self.src,
            layer.router.weight,
            layer.weights(),
            layer.top_k,
            layer.renormalise,
            layer.act,
            self.residual,
        )

    def __call__(self, x: F32, residual: F32, op_by_op: bool = False) -> F32:
        self.program.write(self.src, x)
        self.program.write(self.residual, residual)
        if op_by_op:
            self.program.run_op(0, rows_only(len(x)))
        else:
            self.program.run(rows_only(len(x)))
        return self.program.read(self.out, len(x))


def inputs(rng: np.random.Generator, rows: int, layer: Layer) -> tuple[F32, F32]:
    x = rng.standard_normal((rows, layer.hidden), dtype=np.float32) * 2
    return (x if layer.float32 else to_bf16(x)), rng.standard_normal((rows, layer.hidden), dtype=np.float32)


def product(x: F32, w: Packed, float32: bool) -> F32:
    return product_f32(x, w.exact) if float32 else product_bf16(x, w.rounded)


def activate(both: F32, act: str, float32: bool) -> F32:
    g, u = np.split(both, 2, axis=-1)
    z = g
    if act == "gelu":
        z = np.float32(1.59576912) * contract.fma(np.float32(0.044715), (g * g) * g, g)
    y = (g / (np.float32(1) + contract.exp(-z))) * u
    return y if float32 else to_bf16(y)


def route(logits: F32, layer: Layer) -> tuple[list[int], list[np.float32]]:
    e = contract.exp(logits - logits.max())
    p = e / contract.lane_sum(e)
    ids = sorted(range(len(p)), key=lambda i: (-p[i], i))[: layer.top_k]
    chosen = [p[i] for i in ids]
    total = np.float32(0)
    for value in chosen:
        total = total + value
    return ids, [value / total for value in chosen] if layer.renormalise else chosen


def expected(x: F32, residual: F32, layer: Layer) -> F32:
    """The contract, row by row."""
    out = np.empty_like(residual)
    for r in range(len(x)):
        row = x[r : r + 1]
        total = np.zeros(layer.hidden, np.float32)
        for expert, weight in zip(*route(product(row, layer.router, layer.float32)[0], layer), strict=True):
            gate, up, down = layer.experts[expert]
            both = np.concatenate([product(row, part, layer.float32) for part in (gate, up)], axis=-1)
            inner = activate(both, layer.act, layer.float32)
            total = contract.fma(weight, product(inner, down, layer.float32)[0], total)
        out[r] = residual[r] + total
    return out


@pytest.mark.parametrize("float32", [False, True], ids=["bf16_path", "float32_path"])
def test_every_instruction_set_gives_the_contracts_bits(float32: bool, rng: np.random.Generator) -> None:
    layer = draw(rng, 96, 160, 5, int(rng.integers(1, 4)), float32, ["f32"] if float32 else BF16_KINDS)
    x, residual = inputs(rng, 14, layer)
    want = expected(x, residual, layer)
    for isa in ALL_ISAS:
        for threads in (1, 2, 3):
            run = Run(isa, threads, layer, rows=16)
            np.testing.assert_array_equal(bits(run(x, residual)), bits(want), err_msg=isa)
            np.testing.assert_array_equal(bits(run(x, residual, op_by_op=True)), bits(want))
            np.testing.assert_array_equal(bits(run(x[3:4], residual[3:4])), bits(want[3:4]))
            run.program.close()


def test_experts_of_every_format_give_equal_bits_everywhere(rng: np.random.Generator) -> None:
    """Each matrix of a format of its own, as files with importance matrices mix them."""
    sources = list(rng.permutation([*QUANTISED, "Q8_0", "Q4_K", "Q6_K", "Q4_1"]))
    parts = [packed_format(rng, str(source), 256, 256, extreme=False) for source in sources]
    triples = tuple((parts[i], parts[i + 1], parts[i + 2]) for i in range(0, 18, 3))
    layer = Layer(packed(rng, "bf16", 6, 256), triples, 3)
    x, residual = inputs(rng, 30, layer)
    found = []
    for isa in ALL_ISAS:
        run = Run(isa, 2, layer, rows=30)
        found.append(bits(run(x, residual)))
        for r in rng.integers(0, 30, 3):
            np.testing.assert_array_equal(bits(run(x[r : r + 1], residual[r : r + 1]))[0], found[0][r], err_msg=isa)
        run.program.close()
    assert np.isfinite(found[0].view(np.float32)).all()
    for other, isa in zip(found[1:], ALL_ISAS[1:], strict=True):
        np.testing.assert_array_equal(other, found[0], err_msg=isa)


@pytest.mark.parametrize("float32", [False, True], ids=["bf16_path", "float32_path"])
@pytest.mark.parametrize("sizes", [(72, 40, 6, 2), (100, 24, 20, 8)])
def test_a_row_does_not_depend_on_the_others(
    sizes: tuple[int, int, int, int], float32: bool, rng: np.random.Generator
) -> None:
    """Alone, among 40 with other choices, and among 300 that all chose as it did (several blocks an expert)."""
    layer = draw(rng, *sizes, float32, ["f32"] if float32 else ["bf16"])
    x, residual = inputs(rng, 40, layer)
    for isa in ALL_ISAS:
        for threads in (1, 2):
            run = Run(isa, threads, layer, rows=300)
            together = bits(run(x, residual))
            for r in rng.integers(0, 40, 5):
                alone = bits(run(x[r : r + 1], residual[r : r + 1]))
                np.testing.assert_array_equal(alone[0], together[r], err_msg=isa)
            same = bits(run(np.repeat(x[:1], 300, axis=0), np.repeat(residual[:1], 300, axis=0)))
            np.testing.assert_array_equal(same, np.repeat(together[:1], 300, axis=0))
            run.program.close()


def test_many_rows_go_through_in_chunks_of_equal_bits(rng: np.random.Generator) -> None:
    """Wide rows with many slots: 400 of them are more than the op's memory holds at once."""
    layer = draw(rng, 8192, 16, 8, 8, False, ["bf16"])
    x, residual = inputs(rng, 400, layer)
    whole = Run(ISAS[0], 2, layer, rows=400)
    assert whole.program.workspace_bytes < 180 << 20
    together = bits(whole(x, residual))
    np.testing.assert_array_equal(bits(whole(x[:150], residual[:150])), together[:150])
    np.testing.assert_array_equal(bits(whole(x[330:350], residual[330:350])), together[330:350])
    whole.program.close()


def test_equal_probabilities_choose_the_lowest_ids(rng: np.random.Generator) -> None:
    layer = draw(rng, 64, 32, 6, 3, False, ["bf16"])
    twins = packed(rng, "bf16", 1, 64)
    data = np.zeros(_native.packed_bytes("bf16", 6, 64), np.uint8)
    _native.pack("F32", "bf16", 6, 64, np.repeat(twins.rounded, 6, axis=0), data)
    rows = np.repeat(twins.rounded, 6, axis=0)
    router = Packed(_native.Weight(data, 0, "bf16", 6, 64), data, rows, rows)
    layer = Layer(router, layer.experts, 3)
    x, residual = inputs(rng, 4, layer)
    assert route(product(x[:1], router, False)[0], layer)[0] == [0, 1, 2]
    run = Run(ISAS[0], 2, layer, rows=4)
    np.testing.assert_array_equal(bits(run(x, residual)), bits(expected(x, residual, layer)))
    run.program.close()


def test_a_row_of_nan_harms_no_other(rng: np.random.Generator) -> None:
    layer = draw(rng, 64, 96, 9, 4, False, BF16_KINDS)
    x, residual = inputs(rng, 12, layer)
    broken = x.copy()
    broken[5] = np.nan
    broken[7, 3] = np.inf
    for isa in ALL_ISAS:
        run = Run(isa, 2, layer, rows=12)
        clean, found = bits(run(x, residual)), run(broken, residual)
        keep = [r for r in range(12) if r not in (5, 7)]
        np.testing.assert_array_equal(bits(found)[keep], clean[keep])
        assert np.isnan(found[5]).all()
        run.program.close()


def test_without_a_residual_the_sum_alone_is_written(rng: np.random.Generator) -> None:
    layer = draw(rng, 64, 32, 4, 2, True, ["f32"])
    x, _ = inputs(rng, 5, layer)
    p = program(ISAS[0], 2, float32=True)
    src = p.input(64, False)
    out = p.moe(src, layer.router.weight, layer.weights(), 2, layer.renormalise, layer.act)
    assert out != src
    p.write(src, x)
    p.run(rows_only(5))
    want = expected(x, np.zeros_like(x), layer)
    np.testing.assert_array_equal(bits(p.read(out, 5)), bits(want))
    p.close()


def test_a_gated_add_is_equal_everywhere(rng: np.random.Generator) -> None:
    x, gate, residual = (rng.standard_normal((7, n), dtype=np.float32) * 3 for n in (53, 1, 53))
    want = contract.fma(np.float32(1) / (np.float32(1) + contract.exp(-gate)), x, residual)
    for isa in ALL_ISAS:
        for threads in (1, 2):
            p = program(isa, threads)
            src, by, onto = p.input(53, False), p.input(1, False), p.input(53, False)
            assert p.gated_add(src, by, onto) == onto
            for buffer, values in ((src, x), (by, gate), (onto, residual)):
                p.write(buffer, values)
            p.run(rows_only(7))
            np.testing.assert_array_equal(bits(p.read(onto, 7)), bits(want))
            p.close()


def test_recording_refuses_experts_that_do_not_fit(rng: np.random.Generator) -> None:
    p = program(ISAS[0])
    src, onto = p.input(64, True), p.input(64, False)
    router = matrix(rng, 3, 64)
    good = [[matrix(rng, 32, 64), matrix(rng, 32, 64), matrix(rng, 64, 32)] for _ in range(3)]
    odd = [*good[:2], [matrix(rng, 32, 64), matrix(rng, 31, 64), matrix(rng, 64, 32)]]
    for words, arguments in (
        ("three weights", (src, router, [e[:2] for e in good], 2, True, "silu")),
        ("3 experts", (src, router, good[:2], 2, True, "silu")),
        ("top_k", (src, router, good, 4, True, "silu")),
        ("top_k", (src, router, good, 0, True, "silu")),
        ("31 by 64", (src, router, odd, 2, True, "silu")),
        ("silu", (src, router, good, 2, True, "relu")),
        ("product reads", (onto, router, good, 2, True, "silu")),
        ("router", (src, vector(np.ones(64, np.float32)), good, 2, True, "silu")),
        ("residual", (src, router, good, 2, True, "silu", p.input(63, False))),
        ("does not exist", (src, router, good, 2, True, "silu", 99)),
    ):
        with pytest.raises(ValueError, match=words):
            p.moe(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one column"):
        p.gated_add(p.input(64, False), p.input(2, False), onto)
    with pytest.raises(ValueError, match="own input"):
        p.gated_add(onto, p.input(1, False), onto)
    p.close()


UNREAD = """
import ctypes, mmap, sys
import numpy as np
from octavo import _native
from tests.support.native import matrix, program, rows_only

rng = np.random.default_rng(int(sys.argv[1]))
size = _native.packed_bytes("bf16", 64, 64)
room = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
_native.pack("F32", "bf16", 64, 64, rng.standard_normal((64, 64), dtype=np.float32), room)
unread = _native.Weight(room, 0, "bf16", 64, 64)
values = np.zeros((4, 64), np.float32)
values[[0, 2]] = rng.uniform(0.1, 1, (2, 64))  # positive rows choose experts 0 and 2
packed = np.zeros(_native.packed_bytes("bf16", 4, 64), np.uint8)
_native.pack("F32", "bf16", 4, 64, values, packed)
experts = [[unread if e in (1, 3) else matrix(rng, 64, 64) for _ in range(3)] for e in range(4)]
p = program(_native.isas()[0], 2)
src = p.input(64, True)
out = p.moe(src, _native.Weight(packed, 0, "bf16", 4, 64), experts, 2, True, "silu")
address = ctypes.addressof(ctypes.c_char.from_buffer(room))
protected = ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), len(room), 0)  # PROT_NONE
assert protected == 0
for rows in (1, 20):
    p.write(src, rng.uniform(0.1, 1, (rows, 64)).astype(np.float32))
    p.run(rows_only(rows))
    assert np.isfinite(p.read(out, rows)).all()
print("done")
"""


def test_an_expert_that_no_row_chose_is_not_read(rng: np.random.Generator) -> None:
    """Its memory may not even be touched: a process that did would die."""
    done = subprocess.run(
        [sys.executable, "-c", UNREAD, str(rng.integers(1 << 30))], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout == "done\n", (done.returncode, done.stderr)
