"""The engine as a child process: how it is started, how its death is told, how long to wait before the next.

Life: `EngineProcess.spawn` -> running -> `reap` after its end of file, or `kill`. The child is spawned from the
thread that runs the client's event loop, because the kernel kills it when that thread ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from octavo.config import EngineConfig
from octavo.engine import journal, oom
from octavo.engine.channel import encode_frame
from octavo.engine.journal import JournalReader, Reading

ENGINE_COMMAND = (sys.executable, "-m", "octavo.engine")
"""How the engine is started; tests start one with an executor of their own."""
FAILED = 1
"""Exit status of an engine that failed in a step, or could not start."""
NO_MEMORY = 75
"""Exit status of an engine to which the system gave no more memory."""
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))
_DUMP_SECONDS = 2.0
"""A stuck engine has so long to write its stack."""


class Cause(Enum):
    """Whose fault a death may be."""

    CRASH = "crash"
    """The engine itself: a signal that code raises, an exception in a step, a step that never ends."""
    KILLED = "killed"
    """For want of memory, or nobody knows; the same work may well go through next time."""
    OUTSIDE = "outside"
    """Somebody sent SIGKILL: the kernel, which sends it for want of memory, has counted no such kill."""


@dataclass(frozen=True)
class Death:
    """How one life of the engine ended."""

    how: str
    """In words."""
    cause: Cause


class EngineProcess:
    """One life of the engine."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: socket.socket,
        model: str,
        journal: tuple[int, JournalReader],
        life: int,
    ) -> None:
        """journal: its descriptor, for the next life, and our view of it."""
        self._process = process
        self._model = model
        self._journal = journal
        self._life = life
        self._stuck: str | None = None
        self._oom_kills: Mapping[str, int] = {}
        """The kernel's counters before this life began."""
        self.channel = channel
        """The parent's end, not yet owned by an event loop."""

    @classmethod
    def spawn(cls, command: Sequence[str], config: EngineConfig, before: EngineProcess | None = None) -> EngineProcess:
        """Starts an engine and gives it its configuration, so that it loads from now on.

        before: the life before this one, whose journal it takes over.
        """
        parent, child = socket.socketpair()
        if before is None:
            fd = journal.create()
            shared = (fd, JournalReader(fd))
        else:
            shared = before._journal
        shared[1].reset()
        oom_kills = oom.kills()
        life = 0 if before is None else before._life + 1
        inherited = (child.fileno(), shared[0])
        flags = ("--fd", child.fileno(), "--journal", shared[0], "--life", life, "--parent", os.getpid())
        with child:
            process = subprocess.Popen([*command, *map(str, flags)], pass_fds=inherited, stdin=subprocess.DEVNULL)
        parent.setblocking(False)
        # An empty socket holds a configuration; one whose engine has ended already takes nothing.
        with contextlib.suppress(ConnectionError):
            parent.send(encode_frame(config))
        spawned = cls(process, parent, config.model.path or "the default model", shared, life)
        spawned._oom_kills = oom_kills
        return spawned

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def reading(self) -> Reading | None:
        """What the engine does now, or did last."""
        return self._journal[1].read()

    def end_stuck(self, why: str) -> None:
        """Ends an engine in which nothing moves. It may first say where it stands. Blocks: call it in a thread."""
        self._stuck = why
        self._process.send_signal(signal.SIGABRT)
        if not self.wait(_DUMP_SECONDS):
            self.kill()

    def wait(self, seconds: float) -> bool:
        """Waits for the end; False if it did not come in time. Blocks: call it in a worker thread."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def reap(self, seconds: float) -> Death:
        """Waits for an engine that has closed its channel, killing it if it lingers; says how it ended."""
        lingered = not self.wait(seconds)
        if lingered:
            self.kill()
            self._process.wait()
        if self._stuck is not None:
            return Death(self._stuck, Cause.CRASH)
        if lingered:
            return Death("its channel closed", Cause.KILLED)
        status = self._process.returncode
        how = describe_exit(status, self._model)
        if status == FAILED or -status in _CRASHES:
            return Death(how, Cause.CRASH)
        if status != -signal.SIGKILL:
            return Death(how, Cause.KILLED)
        moved = oom.moved(self._oom_kills, oom.kills())
        if moved:
            how += ", while the kernel killed for want of memory"
        return Death(how, Cause.OUTSIDE if moved is False else Cause.KILLED)


def describe_exit(status: int, model: str) -> str:
    """An exit status in words; `model` is what the engine has mapped."""
    if status == NO_MEMORY:
        return f"exit status {status}: the system gave it no more memory"
    if status >= 0:
        return f"exit status {status}"
    if status == -signal.SIGBUS:
        return (
            f"signal SIGBUS: a file that it had mapped ({model}, or its packed weights in the cache) was cut short "
            "while it was read, or its disk failed"
        )
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


class Backoff:
    """Delays between restarts: doubling from `first` to `most`, and back to `first` after `calm` seconds of service."""

    def __init__(self, first: float = 0.05, most: float = 10.0, calm: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._calm = calm
        self._next = first
        self._ready_at: float | None = None

    def ready(self) -> None:
        """The engine serves."""
        self._ready_at = time.monotonic()

    def delay(self, most: float | None = None) -> float:
        """How long to wait now; `most` is the cap where it is less than the usual one."""
        if self._ready_at is not None and time.monotonic() - self._ready_at >= self._calm:
            self._next = self._first
        self._ready_at = None
        delay = min(self._next, self._most if most is None else most)
        self._next = min(self._next * 2, self._most)
        return delay
