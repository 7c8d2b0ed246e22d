"""The engine as a child process: how it is started, how its death is told, how long to wait before the next.

Life: `EngineProcess.spawn` -> running -> `reap` after its end of file, or `kill`. The child is spawned from the
thread that runs the client's event loop, because the kernel kills it when that thread ends.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from octavo.config import EngineConfig
from octavo.engine.channel import encode_frame

ENGINE_COMMAND = (sys.executable, "-m", "octavo.engine")
"""How the engine is started; tests start one with an executor of their own."""


class EngineProcess:
    """One life of the engine."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, model: str) -> None:
        self._process = process
        self._model = model
        self.channel = channel
        """The parent's end, not yet owned by an event loop."""

    @classmethod
    def spawn(cls, command: Sequence[str], config: EngineConfig) -> EngineProcess:
        """Starts an engine and gives it its configuration, so that it loads from now on."""
        parent, child = socket.socketpair()
        with child:
            process = subprocess.Popen(
                [*command, "--fd", str(child.fileno())], pass_fds=(child.fileno(),), stdin=subprocess.DEVNULL
            )
        parent.sendall(encode_frame(config))
        parent.setblocking(False)
        return cls(process, parent, config.model.path or "the default model")

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Waits for the end; False if it did not come in time. Blocks: call it in a worker thread."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def reap(self, seconds: float) -> str:
        """Waits for an engine that has closed its channel, killing it if it lingers; says how it ended."""
        if not self.wait(seconds):
            self.kill()
            self._process.wait()
        return describe_exit(self._process.returncode, self._model)


def describe_exit(status: int, model: str) -> str:
    """An exit status in words; `model` is what the engine has mapped."""
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

    def __init__(self, first: float = 0.1, most: float = 10.0, calm: float = 60.0) -> None:
        self._first = first
        self._most = most
        self._calm = calm
        self._next = first
        self._ready_at: float | None = None

    def ready(self) -> None:
        """The engine serves."""
        self._ready_at = time.monotonic()

    def delay(self) -> float:
        """How long to wait now."""
        if self._ready_at is not None and time.monotonic() - self._ready_at >= self._calm:
            self._next = self._first
        self._ready_at = None
        delay = self._next
        self._next = min(self._next * 2, self._most)
        return delay
