"""The kernel's out-of-memory kills, read from files like its own, and what a death by signal then means."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine import oom
from octavo.engine.supervisor import NO_MEMORY, Cause, EngineProcess

OTHERS = "nr_free_pages 12\nnr_oom_kill 4\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any counter."""
    monkeypatch.setattr(oom, "ROOT", tmp_path)
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_the_machines_counter_and_the_groups_are_read(kernel: Path) -> None:
    write(kernel, "proc/vmstat", f"{OTHERS}oom_kill 7\n")
    assert oom.kills() == {"vmstat": 7}
    write(kernel, "proc/self/cgroup", "4:memory:/old\n0::/a.slice/b\n")
    write(kernel, "sys/fs/cgroup/a.slice/b/memory.events", "oom 9\noom_kill 3\noom_group_kill 1\n")
    assert oom.kills() == {"vmstat": 7, "memory.events": 3}
    write(kernel, "proc/self/cgroup", "0::/\n")
    write(kernel, "sys/fs/cgroup/memory.events", "oom_kill 5\n")
    assert oom.kills() == {"vmstat": 7, "memory.events": 5}


@pytest.mark.parametrize(
    ("vmstat", "group"),
    [
        (OTHERS, "0::/gone\n"),
        ("oom_kill\noom_kill many\n", "4:memory:/x\n"),
        ("", ""),
        ("oom_kill -1", "0::/../../x\n"),
    ],
)
def test_what_is_no_counter_is_none(kernel: Path, vmstat: str, group: str) -> None:
    write(kernel, "proc/vmstat", vmstat)
    write(kernel, "proc/self/cgroup", group)
    write(kernel, "x/memory.events", "oom_kill 5\n")
    assert oom.kills() == {}


def test_readings_are_compared_where_both_have_a_counter() -> None:
    assert oom.moved({"vmstat": 1}, {"vmstat": 1}) is False
    assert oom.moved({"vmstat": 1, "memory.events": 1}, {"vmstat": 2, "memory.events": 1}) is True
    assert oom.moved({"vmstat": 1}, {"memory.events": 1}) is None
    assert oom.moved({}, {}) is None


def _ending(how: str) -> Cause:
    """Spawns a process that ends so, and says whose fault it was."""
    process = EngineProcess.spawn((sys.executable, "-c", f"import os; {how}"), EngineConfig())
    assert process.wait(30)
    death = process.reap(0.0)
    process.channel.close()
    return death.cause


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (f"os.kill(os.getpid(), {int(signal.SIGKILL)})", Cause.OUTSIDE),
        (f"os.kill(os.getpid(), {int(signal.SIGABRT)})", Cause.CRASH),
        (f"os.kill(os.getpid(), {int(signal.SIGUSR1)})", Cause.KILLED),
        (f"os._exit({NO_MEMORY})", Cause.KILLED),
        ("os._exit(1)", Cause.CRASH),
    ],
)
def test_a_kill_that_the_kernel_did_not_count_was_somebodys(kernel: Path, how: str, cause: Cause) -> None:
    write(kernel, "proc/vmstat", "oom_kill 7\n")
    assert _ending(how) is cause


def test_a_kill_may_be_for_want_of_memory_where_the_counter_moved_or_is_not_there(kernel: Path) -> None:
    kill = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    assert _ending(kill) is Cause.KILLED
    write(kernel, "proc/vmstat", "oom_kill 7\n")
    count = f"pathlib.Path({os.fspath(kernel / 'proc' / 'vmstat')!r}).write_text('oom_kill 8')"
    assert _ending(f"import pathlib; {count}; {kill}") is Cause.KILLED
