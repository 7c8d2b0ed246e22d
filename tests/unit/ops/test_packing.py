"""Packed weights: packed once, mapped afterwards, and a start never fails because the cache cannot be written."""

from __future__ import annotations

import resource
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo import _native
from octavo.models.spec import Tensor
from octavo.ops.cpu.packing import DATA_OFFSET, Arena, open_arena, plan_arena
from octavo.ops.numeric import expand, round_bf16

SHAPES = {
    "embed.weight": ("Q8_0", (70, 64)),
    "norm.weight": ("F32", (64,)),
    "half.weight": ("F16", (16,)),
    "a.weight": ("Q4_1", (33, 64)),
    "b.weight": ("BF16", (5, 40)),
    "c.weight": ("F32", (18, 7)),
    "d.weight": ("F16", (2, 100)),
}


def quiet(what: str, fraction: float | None) -> None:
    assert fraction is None or 0 <= fraction <= 1


class Model:
    """Random tensors of every type; counts how often it is read."""

    def __init__(self) -> None:
        seed = secrets.randbits(32)
        print(f"seed {seed}")
        rng = np.random.default_rng(seed)
        self.passes = 0
        self._tensors = []
        for name, (source, shape) in SHAPES.items():
            values = rng.standard_normal(shape).astype(np.float32)
            raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[source])
            self._tensors.append(Tensor(name, source, shape, memoryview(np.ascontiguousarray(raw)).cast("B")))

    def __call__(self) -> Iterator[Tensor]:
        self.passes += 1
        yield from self._tensors

    def values(self) -> dict[str, np.ndarray]:
        return {t.name: expand(t.source, t.shape, t.data) for t in self._tensors}


@pytest.fixture
def model() -> Model:
    return Model()


def check(arena: Arena, model: Model) -> None:
    """The arena holds the model's values, rounded as its precision says."""
    rounded = arena.plan.precision == "bf16"
    for name, expected in model.values().items():
        entry = arena.plan.entries[name]
        packed = np.frombuffer(arena.buffer, np.uint8, entry.size, entry.offset)
        assert entry.offset % 64 == 0
        if entry.kind == "vector":
            got = packed.view(np.float32)
        else:
            got = np.empty((entry.n, entry.k), np.float32)
            _native.unpack(entry.kind, entry.n, entry.k, packed, got, rounded)
            expected = round_bf16(expected) if rounded else expected
        np.testing.assert_array_equal(got, expected, err_msg=name)
        weight = arena.weight(name)
        assert (weight.n, weight.k) == (entry.n, entry.k)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_the_second_start_maps_what_the_first_packed(precision: str, tmp_path: Path, model: Model) -> None:
    plan = plan_arena(SHAPES, precision)
    first = open_arena(plan, "id", model, tmp_path / "packed", quiet)
    second = open_arena(plan, "id", model, tmp_path / "packed", quiet)
    assert (first.origin, second.origin, model.passes) == ("packed", "mapped", 1)
    check(first, model)
    check(second, model)
    assert not list(tmp_path.rglob("*.partial"))


def test_weights_and_precision_each_have_an_arena_of_their_own(tmp_path: Path, model: Model) -> None:
    bf16 = plan_arena(SHAPES, "bf16")
    open_arena(bf16, "id", model, tmp_path, quiet)
    open_arena(bf16, "other", model, tmp_path, quiet)
    open_arena(plan_arena(SHAPES, "float32"), "id", model, tmp_path, quiet)
    assert model.passes == 3 and len(list(tmp_path.glob("*.arena"))) == 3


def test_file_types_keep_their_precision(model: Model) -> None:
    kinds = {name: entry.kind for name, entry in plan_arena(SHAPES, "bf16").entries.items()}
    assert kinds == {
        "embed.weight": "q8_0",
        "norm.weight": "vector",
        "half.weight": "vector",
        "a.weight": "q4_1",
        "b.weight": "bf16",
        "c.weight": "bf16",
        "d.weight": "bf16",
    }
    said = plan_arena(SHAPES, "bf16").rounding("expanded") or ""
    assert "F16 and F32 weights are rounded" in said and "Q4_1 and Q8_0 weights keep their bits" in said
    assert plan_arena(SHAPES, "float32").rounding("expanded") is None
    assert plan_arena({"b": ("BF16", (4, 4))}, "bf16").rounding("expanded") is None


@pytest.mark.parametrize("damage", ["truncated", "longer", "index", "empty", "weights", "checksum"])
def test_a_damaged_arena_is_packed_again(
    damage: str, tmp_path: Path, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_arena(SHAPES, "bf16")
    open_arena(plan, "id", model, tmp_path, quiet)
    (path,) = tmp_path.glob("*.arena")
    whole = path.read_bytes()
    middle = (len(whole) + DATA_OFFSET) // 2
    damaged = {
        "truncated": whole[:-1],
        "longer": whole + b"x",
        "index": b"x" * 20 + whole[20:],
        "empty": b"",
        "weights": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "checksum": whole[:-1] + bytes([whole[-1] ^ 1]),
    }
    path.write_bytes(damaged[damage])
    again = open_arena(plan, "id", model, tmp_path, quiet)
    assert (again.origin, model.passes) == ("packed", 2)
    assert caplog.text.count("is damaged") == (damage in ("weights", "checksum"))
    check(again, model)


def test_a_directory_that_cannot_be_made_leaves_the_weights_in_memory(tmp_path: Path, model: Model) -> None:
    (tmp_path / "file").write_text("in the way")
    arena = open_arena(plan_arena(SHAPES, "bf16"), "id", model, tmp_path / "file" / "packed", quiet)
    assert arena.origin == "memory" and "Not a directory" in (arena.problem or "")
    check(arena, model)


def test_a_file_that_cannot_grow_leaves_the_weights_in_memory_and_nothing_behind(tmp_path: Path, model: Model) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        arena = open_arena(plan_arena(SHAPES, "bf16"), "id", model, tmp_path, quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert arena.origin == "memory" and "too large" in (arena.problem or "")
    check(arena, model)
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob("*.arena"))


def test_without_a_directory_nothing_is_kept(model: Model) -> None:
    arena = open_arena(plan_arena(SHAPES, "bf16"), "id", model, None, quiet)
    assert (arena.origin, arena.problem) == ("memory", None)
    check(arena, model)


def test_starts_at_the_same_time_pack_once(tmp_path: Path, model: Model) -> None:
    plan = plan_arena(SHAPES, "bf16")
    found: list[Arena] = []
    threads = [
        threading.Thread(target=lambda: found.append(open_arena(plan, "id", model, tmp_path, quiet))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(arena.origin for arena in found) == ["mapped", "mapped", "mapped", "packed"]
    assert model.passes == 1


def test_biases_are_joined(model: Model) -> None:
    arena = open_arena(plan_arena(SHAPES, "bf16"), "id", model, None, quiet)
    joined = arena.vector(["norm.weight", "half.weight"])
    assert (joined.n, joined.k) == (1, 80)
    assert arena.vector(["norm.weight"]).k == 64
