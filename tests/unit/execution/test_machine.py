"""Free memory as a container sees it, on file systems made for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.execution.machine import available_bytes, cpu_count

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", f"MemTotal: {32 << 20} kB\nMemAvailable: {16 << 20} kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_cgroups_it_is_what_the_machine_has(root: Path) -> None:
    assert available_bytes(root) == 16 * GIB


def test_a_version_2_limit_counts_less_what_is_used(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/app/engine\n")
    write(root / "sys/fs/cgroup/app/engine/memory.max", "max\n")
    write(root / "sys/fs/cgroup/app/memory.max", f"{4 * GIB}\n")
    write(root / "sys/fs/cgroup/app/memory.current", f"{GIB}\n")
    assert available_bytes(root) == 3 * GIB


def test_a_version_1_limit_counts(root: Path) -> None:
    write(root / "proc/self/cgroup", "7:cpu:/x\n5:memory:/docker/abc\n")
    write(root / "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(root / "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", f"{3 * GIB}\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", str((1 << 63) - 4096))
    assert available_bytes(root) == 0


def test_a_limit_above_what_the_machine_has_does_not_add(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/\n")
    write(root / "sys/fs/cgroup/memory.max", f"{64 * GIB}\n")
    assert available_bytes(root) == 16 * GIB


def test_this_machine_has_memory_and_cpus() -> None:
    assert available_bytes() > 0 and cpu_count() >= 1
