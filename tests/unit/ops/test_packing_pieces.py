"""Packing every type of a model's files: the values, the memory it takes, and what a broken block is called."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from octavo import _native
from octavo.models.spec import Tensor
from octavo.ops.cpu.packing import Arena, open_arena, plan_arena
from octavo.ops.numeric import SOURCES, expand, expand_rounded
from tests.support.formats import QUANTISED, random_rows

Model = tuple[dict[str, tuple[str, tuple[int, ...]]], Callable[[], Iterator[Tensor]]]


def quiet(what: str, fraction: float | None) -> None: ...


def model_of(*tensors: Tensor) -> Model:
    return {t.name: (t.source, t.shape) for t in tensors}, lambda: iter(tensors)


def random_tensor(rng: np.random.Generator, source: str, n: int, k: int) -> Tensor:
    if source in QUANTISED:
        raw = random_rows(rng, source, n, k, extreme=False)
    else:
        values = rng.standard_normal((n, k), dtype=np.float32)
        half = (values.view(np.uint32) >> 16).astype(np.uint16) if source == "BF16" else values.astype(np.float16)
        raw = (values if source == "F32" else half).view(np.uint8)
    return Tensor(f"{source}.weight", source, (n, k), memoryview(np.ascontiguousarray(raw)).cast("B"))


def unpacked(arena: Arena, name: str) -> np.ndarray:
    e = arena.plan.entries[name]
    out = np.empty((e.n, e.k), np.float32)
    packed = np.frombuffer(arena.buffer, np.uint8, e.size, e.offset)
    _native.unpack(e.kind, e.n, e.k, packed, out, arena.plan.precision == "bf16")
    return out


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_every_type_is_packed_as_the_reference_reads_it(
    precision: str, kept: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    tensors = [random_tensor(rng, source, 35, 512) for source in SOURCES]
    sources, read = model_of(*tensors)
    plan = plan_arena(sources, precision)
    arena = open_arena(plan, "id", read, tmp_path if kept else None, quiet)
    for t in tensors:
        values = (expand_rounded if precision == "bf16" else expand)(t.source, t.shape, t.data)
        np.testing.assert_array_equal(unpacked(arena, t.name), values, t.name)
    if precision == "float32":
        assert {e.kind for e in plan.entries.values()} == {"f32"}
    else:
        assert all(plan.entries[f"{s}.weight"].kind == s.lower() for s in QUANTISED)
        assert f"{', '.join(sorted(QUANTISED)[:-1])} and Q8_0 weights keep their bits" in (
            plan.rounding("expanded") or ""
        )


def test_a_matrix_of_several_pieces_is_whole(tmp_path: Path, rng: np.random.Generator) -> None:
    t = random_tensor(rng, "Q8_0", 9000, 2048)  # 19.6 MB packed
    sources, read = model_of(t)
    plan = plan_arena(sources, "bf16")
    whole = np.zeros(plan.size, np.uint8)
    _native.pack("Q8_0", "q8_0", 9000, 2048, t.data, whole)
    for directory in (None, tmp_path):
        arena = open_arena(plan, "id", read, directory, quiet)
        np.testing.assert_array_equal(np.frombuffer(arena.buffer, np.uint8, plan.size), whole)


def resident(path: Path) -> int:
    """Bytes of a file's mappings in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def test_what_is_packed_leaves_the_process_s_memory(tmp_path: Path) -> None:
    n, k = 3072, 4096
    path = tmp_path / "model"
    path.write_bytes(bytes(2 * n * k))  # 25 MB
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(mapping)
    assert np.frombuffer(view, np.uint8)[:: mmap.PAGESIZE].sum() == 0
    assert resident(path) > n * k
    sources, read = model_of(Tensor("a.weight", "BF16", (n, k), view))
    open_arena(plan_arena(sources, "bf16"), "id", read, None, quiet)
    assert resident(path) < 1 << 20
    assert view[:4] == bytes(4)


def test_a_broken_block_is_named(rng: np.random.Generator) -> None:
    t = random_tensor(rng, "Q4_K", 5000, 4096)
    raw = np.frombuffer(t.data, np.uint8).reshape(5000, 16, 144).copy()
    raw[4321, 7, :2] = (0x00, 0x7C)
    sources, read = model_of(Tensor("layers.3.mlp.up.weight", "Q4_K", t.shape, memoryview(raw.reshape(-1))))
    with pytest.raises(ValueError, match=r"tensor layers\.3\.mlp\.up\.weight: row 4321, block 7: .*not finite"):
        open_arena(plan_arena(sources, "bf16"), "id", read, None, quiet)
