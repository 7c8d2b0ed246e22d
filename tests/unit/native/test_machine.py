"""What the machine offers, and memory that comes from files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from octavo import _native


def put(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def affinity() -> int:
    return len(os.sched_getaffinity(0))


def test_portable_kernels_are_always_there_and_last() -> None:
    names = _native.isas()
    assert names[-1] == "portable"
    assert names == [n for n in ("amx", "avx512", "avx2", "portable") if n in names]


def test_without_a_quota_the_affinity_decides(tmp_path: Path) -> None:
    assert _native.cpu_count(str(tmp_path)) == affinity()
    put(tmp_path, "/proc/self/cgroup", "0::/a/b\n")
    put(tmp_path, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    assert _native.cpu_count(str(tmp_path)) == affinity()


@pytest.mark.parametrize("place", ["/a/b", "/a", ""])
def test_a_v2_quota_of_the_group_or_an_ancestor_counts(place: str, tmp_path: Path) -> None:
    put(tmp_path, "/proc/self/cgroup", "0::/a/b\n")
    put(tmp_path, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    put(tmp_path, f"/sys/fs/cgroup{place}/cpu.max", "50000 100000\n")
    assert _native.cpu_count(str(tmp_path)) == 1


def test_a_quota_is_rounded_up_and_never_exceeds_the_affinity(tmp_path: Path) -> None:
    put(tmp_path, "/proc/self/cgroup", "0::/\n")
    for quota, expected in ((1, 1), (100000, 1), (100001, 2), (200000, 2), (6400000, 64)):
        put(tmp_path, "/sys/fs/cgroup/cpu.max", f"{quota} 100000\n")
        assert _native.cpu_count(str(tmp_path)) == min(expected, affinity())


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_v1_quotas_count(mount: str, tmp_path: Path) -> None:
    put(tmp_path, "/proc/self/cgroup", f"3:memory:/x\n2:{'cpu,cpuacct'}:/x/y\n1:cpuset:/\n")
    put(tmp_path, f"/sys/fs/cgroup/{mount}/x/cpu.cfs_quota_us", "100000\n")
    put(tmp_path, f"/sys/fs/cgroup/{mount}/x/cpu.cfs_period_us", "100000\n")
    put(tmp_path, f"/sys/fs/cgroup/{mount}/x/y/cpu.cfs_quota_us", "-1\n")
    put(tmp_path, f"/sys/fs/cgroup/{mount}/x/y/cpu.cfs_period_us", "100000\n")
    assert _native.cpu_count(str(tmp_path)) == 1


@pytest.mark.parametrize("text", ["", "junk\n", "0::\n", "0:\n"])
def test_a_strange_cgroup_file_is_no_limit(text: str, tmp_path: Path) -> None:
    put(tmp_path, "/proc/self/cgroup", text)
    assert _native.cpu_count(str(tmp_path)) == affinity()


@pytest.mark.parametrize("size", [0, 1, 4096, 5_000_001])
def test_an_arena_holds_the_bytes_of_the_file(size: int, tmp_path: Path, rng: np.random.Generator) -> None:
    data = rng.integers(0, 256, size + 1000, dtype=np.uint8)
    file = tmp_path / "weights"
    file.write_bytes(data.tobytes())
    for offset in (0, 64, 999):
        arena = _native.map_arena(str(file), offset, size)
        np.testing.assert_array_equal(np.asarray(arena), data[offset : offset + size])
        with pytest.raises((ValueError, TypeError)):
            memoryview(arena)[0:1] = b"x"


def test_an_arena_outlives_its_name_and_its_file(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(256)) * 20_000)
    arena = _native.map_arena(str(file), 0, 256 * 20_000)
    file.unlink()
    weight = _native.Weight(arena, 0, "bf16", 16, 32)
    del arena
    assert weight.n == 16


def test_an_arena_beyond_the_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 100)
    for offset, length in ((0, 101), (50, 51), (101, 0), (-1, 5), (0, -1)):
        with pytest.raises(ValueError, match="holds 100 bytes"):
            _native.map_arena(str(file), offset, length)
    with pytest.raises(OSError, match="missing"):
        _native.map_arena(str(tmp_path / "missing"), 0, 1)
