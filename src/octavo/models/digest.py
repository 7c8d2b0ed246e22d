"""Digests of model files, remembered so that a second start does not hash again.

Owns the folder `digests` of the cache: one small JSON file for each model file, which holds its SHA-256 beside the
(size, mtime, inode, ctime) it was computed for; any change of those makes it void. The ctime is the one that no
program can set back. A file that changes while it is hashed is not remembered. Off switch: delete the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from octavo.models.spec import ModelError

_CHUNK = 1 << 20


def file_digest(path: Path, cache: Path) -> str:
    """SHA-256 of a file's content, from the manifest where the file has not changed since."""
    record = _record_path(path, cache)
    stamp = _stamp(path)
    known = _load(record)
    if known is not None and known.get("stamp") == stamp and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    digest = hash_file(path)
    if _stamp(path) == stamp:
        remember(path, digest, cache)
    return digest


def model_digest(paths: Sequence[Path], cache: Path) -> str:
    """One file's digest, or one over those of several with their names."""
    if len(paths) == 1:
        return file_digest(paths[0], cache)
    hasher = hashlib.sha256()
    for path in paths:
        hasher.update(f"{len(path.name)}:{path.name}:{file_digest(path, cache)}".encode())
    return hasher.hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, always computed."""
    hasher = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    return hasher.hexdigest()


def remember(path: Path, digest: str, cache: Path) -> None:
    """Writes the manifest; a cache that cannot be written only costs the next start a hash."""
    record = _record_path(path, cache)
    text = json.dumps({"path": str(path.resolve()), "stamp": _stamp(path), "sha256": digest})
    try:
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(record, text.encode())
    except OSError:
        return


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file whole: a reader sees the old content or the new."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _record_path(path: Path, cache: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return cache / "digests" / f"{name}.json"


def _stamp(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]


def _load(record: Path) -> dict[str, object] | None:
    try:
        content = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
