"""The parent's side of a worker: one process in a session of its own, asked by JSON lines, stopped while others run.

Life: `start`, `wait_ready`, then `pause`, `resume` and `run` in any order, `close`. Its group is every process of its
session, so the children of an engine or a server stop and end with it. What it prints goes to a log, whose name is in
every error. Must be started by the thread that lives as long as the command (the kernel's signal on a parent's death
is tied to it).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from octavo.bench.peers.contender import Contender, Timing
from octavo.bench.peers.guard import Guard, kill_session, session_pids, signal_session
from octavo.config import child_environment

_STOP_SECONDS = 10.0
_END_SECONDS = 10.0


class WorkerError(RuntimeError):
    """One line: who, what, and where to read more."""


class Worker:
    """See the module."""

    def __init__(self, contender: Contender, guard: Guard, log: Path) -> None:
        self.contender = contender
        self.paused = False
        self.start_seconds = 0.0
        self._guard = guard
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    @property
    def session(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the process and tells it what to load; does not wait for it."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self.contender.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    start_new_session=True,
                    env=child_environment(**self.contender.changes),
                )
            except OSError as error:
                raise self._error(f"cannot be started ({error.strerror}: {self.contender.command[0]})") from error
        self._guard.add(self.session)
        self._send({"load": self.contender.load})

    def wait_ready(self, timeout: float) -> dict[str, Any]:
        """Facts that the engine tells of itself."""
        reply = self._reply("ready", timeout)
        self.start_seconds = time.monotonic() - self._began
        facts: dict[str, Any] = reply["facts"]
        return facts

    def run(self, prompts: list[list[int]], output: int, timeout: float, users: int | None = None) -> Timing:
        """users: of a closed loop; None: all at once. WorkerError also where an answer has not the length asked."""
        assert not self.paused
        loop = {} if users is None else {"users": users}
        self._send({"run": {"prompts": prompts, "output": output, **loop}})
        found = self._reply("run", timeout)
        counts = tuple(int(count) for count in found["counts"])
        if counts != (output,) * len(prompts):
            raise self._error(
                f"gave answers of {min(counts, default=0)} to {max(counts, default=0)} tokens, not {output}"
            )
        first, last, late = found["first"], found["last"], found["late"]
        return Timing(
            seconds=float(found["seconds"]),
            first=None if first is None else tuple(first),
            last=None if last is None else tuple(last),
            late=None if late is None else int(late),
            counts=counts,
            extra={name: float(value) for name, value in found["extra"].items()},
        )

    def pause(self) -> None:
        """Stops every process of the session, and sees that they are stopped."""
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            signal_session(self.session, signal.SIGSTOP)
            states = session_pids(self.session)
            if not states:
                raise self._error(self._end())
            if all(state in "Tt" for state in states.values()):
                self.paused = True
                return
            if time.monotonic() > deadline:
                raise self._error(f"cannot be stopped (states {sorted(set(states.values()))})")
            time.sleep(0.001)

    def resume(self) -> None:
        signal_session(self.session, signal.SIGCONT)
        self.paused = False

    def memory(self) -> int:
        """Bytes in memory of all its processes; shared pages are counted by halves, thirds and so on."""
        total = 0
        for pid in session_pids(self.session):
            try:
                text = Path("/proc", str(pid), "smaps_rollup").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            total += sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
        return total

    def close(self) -> None:
        """Lets it end by itself for a while, then kills what is left."""
        if self._process is None:
            return
        self.resume()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # its engine hangs in its own end: killed next, with its children
        self.kill()
        self._process.stdout.close()

    def kill(self) -> None:
        """At once, with its children."""
        if self._process is not None:
            kill_session(self.session)
            self._process.wait()
            self._guard.drop(self.session)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        data = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while data:
                data = data[self._process.stdin.write(data) or 0 :]
        except BrokenPipeError as error:
            raise self._error(self._end()) from error

    def _reply(self, kind: str, timeout: float) -> dict[str, Any]:
        message = json.loads(self._line(timeout))
        if "failed" in message:
            raise self._error(message["failed"])
        found: dict[str, Any] = message[kind]
        return found

    def _line(self, timeout: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise self._error(f"gave no answer within {timeout:.0f} s")
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise self._error(self._end())
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _end(self) -> str:
        """How its process ended, in words."""
        assert self._process is not None
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its output"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def _error(self, what: str) -> WorkerError:
        return WorkerError(f"{self.contender.name} {what}; its log is {self._log}")
