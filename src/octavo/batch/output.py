"""The output: a file that whole lines are appended to and that a later run goes on with, or a stream.

Life of a file: `open_output` locks it (two runs never write to one) -> `resume` reads what it holds, cuts off a last
line that a killed run left half written, and marks which lines of the input are answered -> `append` -> `sync` ->
`close`.
What `append` has returned from survives SIGKILL; what `sync` has returned from survives a loss of power too. Off:
`--output -`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Protocol

from octavo.batch.answers import line_of
from octavo.batch.record import sync_directory
from octavo.config import ConfigError


class OutputFailed(Exception):
    """The output takes no more; the message is one sentence."""


class Answered:
    """Which lines of the input are answered: a bit a line."""

    def __init__(self, lines: int) -> None:
        self._bits = bytearray(lines // 8 + 1)
        self._lines = lines
        self.count = 0
        self.errors = 0
        """Of them."""

    def add(self, line: int, error: bool) -> bool:
        """False where it was there already, or the input has no such line."""
        if line > self._lines or line in self:
            return False
        self._bits[line >> 3] |= 1 << (line & 7)
        self.count += 1
        self.errors += error
        return True

    def __contains__(self, line: int) -> bool:
        return line <= self._lines and bool(self._bits[line >> 3] >> (line & 7) & 1)


class Output(Protocol):
    """Where results go."""

    def append(self, text: bytes) -> None:
        """Whole lines. Raises OutputFailed."""
        ...

    def sync(self) -> None:
        """What was appended is on disk when this returns, where there is a disk."""
        ...

    def close(self) -> None: ...


class StreamOutput:
    """Standard output, or what else is no file."""

    def __init__(self, path: str) -> None:
        self._fd = os.dup(1) if path == "-" else os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def append(self, text: bytes) -> None:
        _write(self._fd, text, "-o, the output,")

    def sync(self) -> None:
        return None

    def close(self) -> None:
        os.close(self._fd)


class FileOutput:
    """See the module."""

    def __init__(self, path: Path) -> None:
        """Makes the file where there is none, and locks it. Raises ConfigError."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"-o {path} cannot be written: {error.strerror}; another path would work") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise ConfigError(f"another octavo run is writing {path}; wait for it, or give another -o") from None
        except OSError as error:
            os.close(self._fd)
            raise ConfigError(
                f"-o {path} cannot be locked: {error.strerror}; a path on another file system, or -o -, would work"
            ) from None

    @property
    def empty(self) -> bool:
        return os.fstat(self._fd).st_size == 0

    def is_same_file(self, other: str) -> bool:
        """`other` is this very file."""
        return os.path.samestat(os.fstat(self._fd), os.stat(other))

    def clear(self) -> None:
        """Begins anew."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def resume(self, lines: int) -> Answered:
        """What is answered of an input of so many lines; the next append comes after it. Raises ConfigError."""
        answered = Answered(lines)
        good = number = 0
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            for raw in file:
                number += 1
                if not raw.endswith(b"\n"):
                    break
                found = line_of(raw)
                if found is None:
                    raise self._foreign(number, "is no answer of a run")
                if not answered.add(*found):
                    raise self._foreign(number, f"answers line {found[0]} of INPUT again, or INPUT has no such line")
                good += len(raw)
        if good < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, good)
        os.lseek(self._fd, good, os.SEEK_SET)
        return answered

    def _foreign(self, number: int, problem: str) -> ConfigError:
        return ConfigError(
            f"line {number} of {self.path} {problem}; take it out, or give another -o, or --overwrite, which begins "
            "anew"
        )

    def append(self, text: bytes) -> None:
        _write(self._fd, text, str(self.path))

    def sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise OutputFailed(f"{self.path} cannot be brought to disk: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._fd)


def is_stream(path: str) -> bool:
    """No file that could be gone on with: a pipe, a terminal, a device."""
    if path == "-":
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"-o {path} cannot be written: {error.strerror}; another path would work") from None


def open_output(path: str) -> FileOutput | StreamOutput:
    """Raises ConfigError."""
    if not is_stream(path):
        file = FileOutput(Path(path))
        sync_directory(file.path.absolute().parent)
        return file
    try:
        return StreamOutput(path)
    except OSError as error:
        raise ConfigError(f"-o {path} cannot be written: {error.strerror}; another path would work") from None


def _write(fd: int, text: bytes, name: str) -> None:
    view = memoryview(text)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        gone = error.errno == errno.EPIPE
        reason = "nobody reads it any more" if gone else error.strerror
        raise OutputFailed(f"{name} cannot be written: {reason}") from error
