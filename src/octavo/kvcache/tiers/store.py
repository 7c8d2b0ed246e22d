"""The store of blocks in a directory: one file a block, bounded in bytes, the least recently used goes first.

Owns the directory while it is open: a lock keeps a second process out, the directory and its files are the user's
alone (0700, 0600). A file is written under another name and renamed when it is whole, so what a killed process leaves
is removed at the next start and never read. At the start the index is made from names and sizes; contents are proved
when they are read (wire.py), and a file that fails is removed.

Calls may come from several threads; only the writer's thread adds and evicts. Off: `kv.disk` (see tier.py).
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import threading
from collections import OrderedDict
from pathlib import Path

from octavo.config import ConfigError
from octavo.kvcache.tiers.wire import Cached, WireError, header_bytes, identity_of, make_header, verify
from octavo.types import BlockPages

log = logging.getLogger(__name__)

LOCK = "lock"
RATES = "rates.json"
"""Speeds measured by the last engine (policy.py)."""
PROBE = "probe"
"""A file that measures the disk (policy.py)."""
_NAME = re.compile(r"([0-9a-f]{64})\.(\d{1,2})\.kv")
_PART = ".part"
_OURS = (LOCK, RATES, f"{RATES}.new", PROBE)
_MOST_ENTRIES = 1 << 20
"""Files at most, so that the index stays small however small a block is."""


class DiskStore:
    """Blocks by (key, group)."""

    def __init__(self, directory: Path, max_bytes: int, weights_id: str, numerics_id: str, pages: BlockPages) -> None:
        """Raises ConfigError where the directory cannot be had."""
        self.directory = directory
        self.shapes = pages.shapes
        self._max_bytes = max_bytes
        self._identity = identity_of(weights_id, numerics_id)
        self._checksum = pages.checksum
        self._guard = threading.Lock()
        self._files: OrderedDict[bytes, int] = OrderedDict()
        """Sizes by key and group, the least recently used first."""
        self._bytes = 0
        self._told = False
        """A directory in a block's place was told of."""
        self._lock = _own(directory)
        try:
            self._index()
            self._make_room(0)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(f"--kv-disk {directory} cannot be read ({error.strerror or error})") from error

    def __len__(self) -> int:
        return len(self._files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._bytes

    def file_bytes(self, group: int) -> int:
        """Size of one block's file."""
        return header_bytes(self.shapes[group]) + self.shapes[group].bytes

    def has(self, key: bytes, group: int) -> bool:
        """Whether a file of the block's name is there."""
        return _name(key, group) in self._files

    def touch(self, key: bytes, group: int) -> None:
        """The block was used."""
        with self._guard:
            if _name(key, group) in self._files:
                self._files.move_to_end(_name(key, group))

    def write(self, group: int, cached: Cached, buffer: memoryview) -> int:
        """Keeps a block; buffer: room for the header, then the wire form. Returns its bytes; raises OSError.

        A directory that has the block's name is left alone, and the block is not kept.
        """
        shape = self.shapes[group]
        size = header_bytes(shape)
        buffer[:size] = make_header(self._identity, group, shape, cached, self._checksum(buffer[size:]))
        name = _name(cached.key, group)
        path = self._path(name)
        part = path.with_suffix(_PART)
        self._make_room(len(buffer))
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            written = 0
            while written < len(buffer):
                written += os.write(file, buffer[written:])
        except OSError:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        try:
            os.replace(part, path)
        except IsADirectoryError:
            part.unlink()
            self._leave_alone(path)
            return 0
        with self._guard:
            self._bytes += len(buffer) - self._files.pop(name, 0)
            self._files[name] = len(buffer)
        return len(buffer)

    def expect(self, group: int, cached: Cached) -> None:
        """Tells the system that the block will be read soon; harmless where it is gone."""
        try:
            file = os.open(self._path(_name(cached.key, group)), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(file)

    def read(self, group: int, cached: Cached, buffer: memoryview) -> memoryview | None:
        """The block's wire form, in `buffer`; None where there is no such block (any more).

        A file that is not what its name says is removed and counts as none; `WireError` says so.
        """
        name = _name(cached.key, group)
        path = self._path(name)
        size = self.file_bytes(group)
        try:
            length = _read(path, buffer, size)
        except FileNotFoundError:
            self._forget(name)
            return None
        try:
            if length != size:
                raise WireError(f"it has {'more than ' if length > size else ''}{min(length, size)} of {size} bytes")
            header = header_bytes(self.shapes[group])
            wire = buffer[header:size]
            verify(buffer[:header], self._identity, group, self.shapes[group], cached, self._checksum(wire))
        except WireError as error:
            self._forget(name)
            path.unlink(missing_ok=True)
            raise WireError(f"{path.name} in {self.directory} was removed: {error}") from None
        os.utime(path)
        self.touch(cached.key, group)
        return wire

    def close(self) -> None:
        """Lets another process have the directory."""
        os.close(self._lock)

    def _path(self, name: bytes) -> Path:
        return self.directory / f"{name[:-1].hex()}.{name[-1]}.kv"

    def _forget(self, name: bytes) -> None:
        with self._guard:
            self._bytes -= self._files.pop(name, 0)

    def _make_room(self, size: int) -> None:
        """Evicts files until `size` bytes more are within the bound."""
        while True:
            with self._guard:
                if not self._files or (self._bytes + size <= self._max_bytes and len(self._files) < _MOST_ENTRIES):
                    return
                name, length = self._files.popitem(last=False)
                self._bytes -= length
            self._path(name).unlink(missing_ok=True)

    def _leave_alone(self, path: Path) -> None:
        """Says once what stands in a block's way."""
        if not self._told:
            self._told = True
            log.warning("%s in %s is a directory and left alone: its block is not kept", path.name, self.directory)

    def _index(self) -> None:
        """Finds the files that are there, and removes what a killed process left half written."""
        found: list[tuple[int, bytes, int]] = []
        foreign: list[str] = []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    name = bytes.fromhex(match[1]) + bytes((int(match[2]),))
                    found.append((status.st_mtime_ns, name, status.st_size))
                elif entry.name.endswith(_PART) and _NAME.fullmatch(entry.name.removesuffix(_PART) + ".kv"):
                    os.unlink(entry.path)
                elif entry.name not in _OURS:
                    foreign.append(entry.name)
        found.sort()
        for _, name, size in found:
            self._files[name] = size
            self._bytes += size
        if foreign:
            self._told = any(_NAME.fullmatch(name) for name in foreign)
            log.warning(
                "%s in %s %s none of the KV cache's and left alone, such as %s",
                "1 entry" if len(foreign) == 1 else f"{len(foreign)} entries",
                self.directory,
                "is" if len(foreign) == 1 else "are",
                min(foreign),
            )


def _name(key: bytes, group: int) -> bytes:
    return key + bytes((group,))


def _read(path: Path, buffer: memoryview, size: int) -> int:
    """Reads a file of `size` bytes; returns the bytes it has, or one more where it has more."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        length = 0
        while length < size:
            count = os.readv(file, [buffer[length:size]])
            if not count:
                return length
            length += count
        return size + len(os.read(file, 1))
    finally:
        os.close(file)


def _own(directory: Path) -> int:
    """Makes the directory where it is missing and locks it; the lock's file."""
    named = f"--kv-disk {directory}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError(
                f"{named} is open to other users, who could read what was said; chmod 700 {directory} would work, "
                f"or a directory that does not exist yet"
            )
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{named} cannot be used ({error.strerror or error}); a directory that you may write to would work"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ConfigError(f"{named} is in use by another engine; a directory of its own for each would work") from error
    return lock
