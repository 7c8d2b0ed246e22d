"""The input: a file that is looked through once and then read line by line, or a stream that is only read.

Life of a file: `survey` reads it once for its digest and its number of lines (what a run that goes on is checked
against, and what the time left is made from), then `Lines` hands its lines out. A thread reads; it is never more than a
few lines ahead, so a file may be of any size, and a pipe may be slow. Blank lines are nothing and are passed over, but
counted. A line that is longer than a request may be is read past without being kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.config import ConfigError

AHEAD = 64
"""Lines that are read before they are asked for."""
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Survey:
    """What a file holds."""

    sha256: str
    bytes: int
    lines: int
    """With the blank ones, and a last one without an end."""
    blank: int
    changed: tuple[int, int]
    """Size and time of change when it was looked through."""


@dataclass(frozen=True)
class Line:
    """One line of the input."""

    number: int
    """From 1."""
    raw: bytes | None
    """None: it is too long."""


class InputChanged(Exception):
    """The file is not what it was; the message is one sentence."""


def is_file(path: str) -> bool:
    """A regular file, which can be read twice; ConfigError where it cannot be read at all."""
    if path == "-":
        return False
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ConfigError(f"INPUT {path} cannot be read: {error.strerror}; a file with a prompt a line works") from None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"INPUT {path} is a directory; octavo run MODEL INPUT.jsonl -o OUTPUT.jsonl would work")
    return stat.S_ISREG(mode)


def survey(path: Path, say: Callable[[float], None]) -> Survey:
    """Reads the whole file once. say: told how much of it is read, 0 to 1."""
    digest = hashlib.sha256()
    lines = blank = size = 0
    tail = b""
    """Of a line that goes on in the next block: what says whether it is blank."""
    unfinished = False
    with path.open("rb", buffering=0) as file:
        changed = _state(file.fileno())
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
            first, *rest = block.split(b"\n")
            tail += first.strip()[:1]
            for part in rest:
                lines += 1
                blank += not tail
                tail = part.strip()[:1]
            unfinished = not block.endswith(b"\n")
            say(size / max(size, changed[0]))
        if unfinished:
            lines += 1
            blank += not tail
    return Survey(digest.hexdigest(), size, lines, blank, changed)


def _state(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_size, found.st_mtime_ns


class Lines:
    """The input's lines, one after the other, for one event loop. A thread reads ahead; it dies with the process."""

    def __init__(self, path: str, most_bytes: int, known: Survey | None) -> None:
        """known: what the file was when it was looked through; it must still be that at its end."""
        self._most = most_bytes
        self._known = known
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Line | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(AHEAD)
        self._closed = False
        # A reader of its own: the interpreter's own standard input may not be held when the process ends.
        fd = os.dup(0) if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._file = io.BufferedReader(io.FileIO(fd), _BLOCK)
        threading.Thread(target=self._read, name="octavo-input", daemon=True).start()

    async def next(self) -> Line | None:
        """The next line that is not blank; None at the end. Raises OSError and InputChanged."""
        found = await self._queue.get()
        self._room.release()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """No more is wanted; a thread that waits for a pipe is left to it."""
        self._closed = True
        self._room.release()

    def _read(self) -> None:
        try:
            number = 0
            while (raw := self._next_line()) is not None:
                number += 1
                if number == 1:
                    raw = raw.removeprefix(_BOM)
                if raw.strip() or len(raw) > self._most:
                    self._hand(Line(number, raw if len(raw) <= self._most else None))
                if self._closed:
                    return
            if self._known is not None and _state(self._file.fileno()) != self._known.changed:
                raise InputChanged("INPUT was changed while it was read; run it again with --overwrite")
            self._hand(None)
        except (OSError, InputChanged) as error:
            self._hand(error)

    def _next_line(self) -> bytes | None:
        """A line; of one that is too long one byte too many."""
        raw = self._file.readline(self._most + 1)
        if len(raw) > self._most:
            last = raw
            while last and not last.endswith(b"\n"):
                last = self._file.readline(_BLOCK)
        return raw or None

    def _hand(self, item: Line | Exception | None) -> None:
        self._room.acquire()
        if self._closed:
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits for lines
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
