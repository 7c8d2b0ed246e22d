"""A server of our own to torment: the real one, in a process of its own.

Life: `with ServerChild(engine, faults) as child` starts it and waits until it is ready; its output is kept. `python -m
octavo.bench.chaos.child CONFIG` is that process.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Self

import msgspec
import psutil

from octavo.bench.serve.target import Target, parse_target
from octavo.config import ConfigError, EngineConfig, ServerConfig, child_environment
from octavo.engine.faults import VARIABLE

START_SECONDS = 300.0
_SERVING = "Serving at "


class ServerChild:
    """See the module."""

    def __init__(self, engine: EngineConfig, faults: tuple[str, ...] = ()) -> None:
        self._command = [sys.executable, "-m", __name__, msgspec.json.encode(engine).decode()]
        self._environment = child_environment(**{VARIABLE: ";".join(faults)})
        self._url: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.lines: list[str] = []
        """What it printed, both streams."""
        self.process: subprocess.Popen[str]
        self.target: Target

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            url = self._url.get(timeout=START_SECONDS)
        except queue.Empty:
            url = None
        if url is None:
            self.kill()
            raise ConfigError("the server does not start: " + " / ".join(self.lines[-5:]))
        self.target = parse_target(url)
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(_SERVING):
                self._url.put(line.removeprefix(_SERVING).strip().removesuffix("/v1"))
        self._url.put(None)

    def family(self) -> list[psutil.Process]:
        """The server and everything below it."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def kill_engine(self, number: signal.Signals = signal.SIGKILL) -> bool:
        """Sends the engine a signal; False where there is none just now."""
        for process in self.family()[1:]:
            try:
                if "--journal" in process.cmdline():
                    process.send_signal(number)
                    return True
            except psutil.NoSuchProcess:
                continue
        return False

    def kill(self) -> None:
        """Ends the server with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


def left_after(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    left = processes
    while left and time.monotonic() < deadline:
        left = [process for process in left if _runs(process)]
        time.sleep(0.01)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> int:
    from octavo.server.run import run_server

    return run_server(msgspec.json.decode(sys.argv[1], type=EngineConfig), ServerConfig(port=0))


if __name__ == "__main__":
    sys.exit(main())
