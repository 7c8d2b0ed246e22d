"""What this machine has to give: memory and CPUs, as seen from inside a container."""

from __future__ import annotations

import os
from pathlib import Path

_NO_LIMIT = 1 << 60


def available_bytes(root: Path = Path("/")) -> int:
    """Memory this process may still take: what the machine has available, capped by its cgroup's limit."""
    available = _meminfo(root / "proc/meminfo")
    for directory in _cgroup_directories(root):
        limit = min(
            _number(directory / "memory.max"),
            _number(directory / "memory.limit_in_bytes"),
        )
        if limit < _NO_LIMIT:
            used = min(
                _number(directory / "memory.current"),
                _number(directory / "memory.usage_in_bytes"),
            )
            available = min(available, max(0, limit - (used if used < _NO_LIMIT else 0)))
    return available


def cpu_count() -> int:
    """CPUs of this process's affinity; the native module also knows the cgroup's quota."""
    return len(os.sched_getaffinity(0))


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} does not say how much memory is available")


def _cgroup_directories(root: Path) -> list[Path]:
    """The directories of this process's cgroup and its ancestors, version 2 and version 1's memory controller."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
        else:
            continue
        directory = mount / name.lstrip("/")
        found += [
            directory,
            *(parent for parent in directory.parents if parent.is_relative_to(mount)),
        ]
    return found


def _number(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return _NO_LIMIT
    return int(text) if text.isdigit() else _NO_LIMIT
