"""A real `octavo serve` process for measurements and tests: started, awaited, stopped, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import psutil

from octavo.bench.serve.client import fetch
from octavo.bench.serve.target import Target

URL = re.compile(r"https?://([0-9.]+):(\d+)")


class ServerProcess:
    """`with ServerProcess(["--kv-tokens", "4096"]) as server:` gives `server.host` and `server.port`, ready.

    `command` replaces `python -m octavo.cli.main serve`, for example by `make serve` in another clone.
    """

    def __init__(
        self,
        args: Sequence[str] = (),
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        start_timeout: float = 300,
        tls: ssl.SSLContext | None = None,
        api_key: str | None = None,
    ) -> None:
        """tls: trusts the server's certificate; api_key: goes with every request of `target`."""
        self.command = [*(command or [sys.executable, "-m", "octavo.cli.main", "serve", "--port", "0"]), *args]
        self.env = {**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"}
        self.cwd = cwd
        self.start_timeout = start_timeout
        self.tls = tls
        self.api_key = api_key
        self.host = ""
        self.port = 0
        self.lines: list[str] = []
        self._urls: queue.Queue[tuple[str, int] | None] = queue.Queue()

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env,
            cwd=self.cwd,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._await_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if found := URL.search(line):
                self._urls.put((found[1], int(found[2])))
        self._urls.put(None)

    def _await_ready(self) -> None:
        try:
            found = self._urls.get(timeout=self.start_timeout)
        except queue.Empty:
            raise TimeoutError(f"no URL after {self.start_timeout} s: {self.lines[-20:]}") from None
        if found is None:
            raise RuntimeError("the server ended before it was ready:\n" + "\n".join(self.lines[-30:]))
        self.host, self.port = found
        deadline = time.monotonic() + self.start_timeout
        while time.monotonic() < deadline:
            try:
                status, _ = asyncio.run(fetch(self.target, "GET", "/ready"))
            except OSError:
                status = 0
            if status == 200:
                self.ready_seconds = time.monotonic() - self.started
                return
            if self.process.poll() is not None:
                raise RuntimeError("the server ended before it was ready:\n" + "\n".join(self.lines[-30:]))
            time.sleep(0.005)
        raise TimeoutError(f"not ready after {self.start_timeout} s: {self.lines[-20:]}")

    @property
    def target(self) -> Target:
        """Where it listens."""
        return Target(self.host, self.port, tls=self.tls, api_key=self.api_key)

    def processes(self) -> list[psutil.Process]:
        """The server and everything below it."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def memory_bytes(self) -> int:
        """Resident memory of all of them, shared file pages counted once each."""
        return sum(process.memory_info().rss for process in self.processes())

    def metrics(self) -> dict[str, float]:
        """The sample values of /metrics by name and labels."""
        _, body = asyncio.run(fetch(self.target, "GET", "/metrics"))
        return parse_metrics(body.decode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = self.processes() if self.process.poll() is None else []
        self._kill()
        _, alive = psutil.wait_procs([process for process in family if process.pid != self.process.pid], timeout=10)
        for process in alive:
            process.kill()
        if kind is None:
            assert not alive, f"left running: {alive}"

    def _kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._reader.join(timeout=10)


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text to {"name{labels}": value}."""
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}
