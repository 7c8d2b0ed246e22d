"""What keeps an engine from outliving its parent, and from ending over its standard streams.

Owns one thread that waits for the end of the channel, and ends the process then whatever else it does: a step runs
without the interpreter's lock. On Linux the kernel kills the process besides, when the thread that spawned it ends. No
off switch: an engine without its parent serves nobody.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
_HANG_UP = getattr(select, "POLLRDHUP", 0)


def die_with_parent(parent: int | None) -> None:
    """parent: its process id, which tells whether it is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(0)


def watch_channel(fd: int) -> None:
    """Ends this process once the other end of the socket `fd` is closed."""

    def run() -> None:
        poller = select.poll()
        poller.register(fd, _HANG_UP)
        poller.poll()
        os._exit(0)

    threading.Thread(target=run, name="octavo-guard", daemon=True).start()


def open_standard_streams() -> None:
    """Gives descriptors 0 to 2 something to stand for, so that no file or socket of ours gets such a number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == fd, "the lowest free descriptor is given out"
            os.set_inheritable(fd, True)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def tell_crashes() -> None:
    """A crash, and SIGABRT from the parent, print where every thread stands on standard error."""
    faulthandler.enable(file=sys.stderr, all_threads=True)
