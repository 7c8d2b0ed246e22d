"""What the server says on standard error: one line an event, with the time where that is no terminal.

Lines are written by a thread, so that a pipe that nobody reads or a full disk stops no request; what does not fit into
its queue, or cannot be written, is lost. Owns the handler of the loggers `octavo`, `uvicorn.error` (warnings and errors
alone) and, with `--access-log`, `uvicorn.access`. Also watches for the end of the file descriptors, of which the event
loop tells nobody.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import queue
import resource
import sys
import threading
import time

logger = logging.getLogger(__name__)

QUEUED_LINES = 10_000


def configure(access_log: bool) -> None:
    """Called once, before the server starts."""
    handler = SteadyHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if on_terminal() else "%(asctime)s %(levelname)s %(message)s"))
    levels = {"octavo": logging.INFO, "uvicorn.error": logging.WARNING}
    if access_log:
        levels["uvicorn.access"] = logging.INFO
    for name, level in levels.items():
        owner = logging.getLogger(name)
        owner.setLevel(level)
        owner.handlers = [handler]
        owner.propagate = False


def on_terminal() -> bool:
    """Somebody reads along."""
    return sys.stderr.isatty()


class SteadyHandler(logging.Handler):
    """Hands lines to a thread that writes them; never waits, but for a moment at the end of the process."""

    def __init__(self, fd: int = 2) -> None:
        super().__init__()
        self._fd = fd
        self._lines: queue.Queue[bytes] = queue.Queue(QUEUED_LINES)
        self._writing = threading.Thread(target=self._write, name="octavo-log", daemon=True)
        self._writing.start()
        atexit.register(self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:  # a record that cannot be formatted is the caller's mistake, and no request's business
            line = f"{record.levelname} a line that cannot be formatted: {record.msg!r}\n"
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line.encode(errors="replace"))

    def flush(self) -> None:
        """Waits until all is written, for a second at most."""
        deadline = time.monotonic() + 1.0
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.002)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            with contextlib.suppress(OSError):
                while line:
                    line = line[os.write(self._fd, line) :]
            self._lines.task_done()


class DescriptorWatch:
    """Says once that no file descriptors are left, and again only after some were."""

    def __init__(self) -> None:
        self._exhausted = False

    def check(self) -> None:
        """Cheap enough for once a second."""
        try:
            os.close(os.dup(0))
        except OSError as error:
            exhausted = error.errno in (errno.EMFILE, errno.ENFILE)
        else:
            exhausted = False
        if exhausted and not self._exhausted:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            logger.error(
                "no file descriptors are left (the limit is %d): new connections are closed unanswered; "
                "raise it with ulimit -n before the start",
                limit,
            )
        self._exhausted = exhausted
