"""What the parent gave this process, and what keeps it from outliving the parent or hanging on its standard streams.

Owns one thread that waits for the end of the channel, and ends the process then whatever else it does: a step runs
without the interpreter's lock. On Linux the kernel kills the process besides, when the thread that spawned it ends. No
off switch: an engine without its parent serves nobody.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1
_HANG_UP = getattr(select, "POLLRDHUP", 0)


@dataclass(frozen=True)
class Inherited:
    """What the parent gave this process."""

    fd: int
    """The channel."""
    journal: int | None = None
    life: int = 0
    """How many engines were there before."""
    parent: int | None = None
    """The parent's process id."""


def inherited(arguments: Sequence[str] | None = None) -> Inherited:
    """From the command line."""
    parser = argparse.ArgumentParser(prog="python -m octavo.engine", description="Started by the client, not by hand.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the client")
    parser.add_argument("--journal", type=int, help="inherited memory for the journal")
    parser.add_argument("--life", type=int, default=0, help="how many engines were there before")
    parser.add_argument("--parent", type=int, help="process id of the client")
    return Inherited(**vars(parser.parse_args(arguments)))


def begin(arguments: Sequence[str] | None = None) -> Inherited:
    """First of all in an engine's process: from here on it ends with its parent."""
    given = inherited(arguments)
    die_with_parent(given.parent)
    watch_channel(given.fd)
    return given


def end(status: int) -> None:
    """Leaves the process without waiting for threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


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
    """A crash, and SIGABRT from the parent, print where every thread stands on standard error.

    Where that is a pipe, it is opened anew and never waited for: nobody may read it.
    """
    if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(2).st_mode):
        opened = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        os.dup2(opened, 2)
        os.close(opened)
    faulthandler.enable(file=sys.stderr, all_threads=True)
