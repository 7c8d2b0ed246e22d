"""A kernel's out-of-memory counter of a test's own, and a death as the kernel brings it about.

`make_system` makes the files, and names them to server processes that the test starts afterwards; `use_system` has a
server read them; `end_for_want_of_memory`, in its engine, counts and then kills.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.engine import oom

if TYPE_CHECKING:  # servers and engines import this too
    import pytest

_VARIABLE = "TEST_SYSTEM_ROOT"


def make_system(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_VARIABLE, str(root))
    (root / "proc").mkdir()
    _vmstat(root).write_text("nr_free_pages 7\noom_kill 0\n")


def use_system() -> None:
    if root := os.environ.get(_VARIABLE):
        oom.ROOT = Path(root)


def end_for_want_of_memory() -> None:
    """Without a system of the test's own, nobody counts: it is a kill from outside."""
    if root := os.environ.get(_VARIABLE):
        before = _vmstat(Path(root)).read_text().split()[-1]
        _vmstat(Path(root)).write_text(f"nr_free_pages 0\noom_kill {int(before) + 1}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def _vmstat(root: Path) -> Path:
    return root / "proc" / "vmstat"
