"""Whatever becomes of the command, none of the processes that it started lives on, the stopped ones included.

A stopped process reads no end of file, and the kernel's signal on a parent's death reaches children alone, not theirs.
So a small process stands beside the command, in a session of its own, and knows every session that was started; when
the pipe from the command ends, in whatever way the command ended, it kills all of them. Life: `with Guard() as guard`,
`add` after each start, `drop` after each end. Off switch: none. Run as a script it is that process; Linux only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_PATIENCE = 10.0


def session_pids(session: int) -> dict[int, str]:
    """Processes of a session and their states, letters as in /proc/PID/stat; dead ones are left out."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            if os.getsid(int(entry)) != session:
                continue
            state = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue  # it ended between the listing and the question, or belongs to someone else
        if state not in "ZX":
            found[int(entry)] = state
    return found


def signal_session(session: int, number: int) -> list[int]:
    """To every process of it; the ids that it went to."""
    reached = []
    for pid in session_pids(session):
        try:
            os.kill(pid, number)
            reached.append(pid)
        except ProcessLookupError:
            continue
    return reached


def kill_session(session: int) -> None:
    """Until none is left, for one may be starting another. RuntimeError where one cannot be killed."""
    deadline = time.monotonic() + _PATIENCE
    while signal_session(session, signal.SIGKILL):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of session {session} do not end: {sorted(session_pids(session))}")
        time.sleep(0.01)


class Guard:
    """See the module."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        return self

    def add(self, session: int) -> None:
        self._tell(f"+{session}")

    def drop(self, session: int) -> None:
        self._tell(f"-{session}")

    def _tell(self, what: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{what}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError("the process that guards the workers has ended: start the command again") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """The guarding process: ends with its input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        if line[0] == "+":
            sessions.add(session)
        else:
            sessions.discard(session)
    for session in sessions:
        kill_session(session)


if __name__ == "__main__":
    main()
