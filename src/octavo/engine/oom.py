"""Did the kernel kill for want of memory? Its counters tell such a SIGKILL from one that somebody sent.

Owns the reading of the counters `oom_kill`: of the machine, in /proc/vmstat, and of this process's own control group,
in memory.events, where there is one. The kernel moves them before it sends the signal, so that they have moved once
the death can be seen. Other victims move them too: unmoved counters prove that it was somebody, moved ones prove
nothing. Killers in user space (earlyoom, systemd-oomd) move none. Life: one reading before an engine starts and one
after it died. No off switch: two small files, read once a life.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""Where the kernel's files are; tests have others."""
_COUNTER = "oom_kill"


def kills() -> dict[str, int]:
    """Each counter that can be read, by the name of its file."""
    files = {"vmstat": ROOT / "proc" / "vmstat", "memory.events": _group_events()}
    found = {name: None if file is None else _count(file) for name, file in files.items()}
    return {name: count for name, count in found.items() if count is not None}


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> bool | None:
    """Whether any process was killed between two readings; None: no counter was read in both."""
    both = before.keys() & after.keys()
    return any(before[name] != after[name] for name in both) if both else None


def _group_events() -> Path | None:
    """Of the control group (version 2) that this process and its children are in."""
    text = _read(ROOT / "proc" / "self" / "cgroup")
    for line in (text or "").splitlines():
        number, _, path = line.partition("::")
        if number == "0" and ".." not in PurePosixPath(path).parts:
            return ROOT / "sys" / "fs" / "cgroup" / path.lstrip("/") / "memory.events"
    return None


def _count(file: Path) -> int | None:
    for line in (_read(file) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == _COUNTER and value.strip().isdecimal():
            return int(value)
    return None


def _read(file: Path) -> str | None:
    """None where there is no such file, or none for us."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
