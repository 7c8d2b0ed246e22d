"""Reads the small files beside a model, bounded in size and depth; every fault is a ModelError.

Owns nothing; off switch: none.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from octavo.models.spec import ModelError

T = TypeVar("T")

CONFIG_BYTES = 1 << 20
TOKENIZER_BYTES = 1 << 28


def read_bytes(path: Path, limit: int) -> bytes:
    """A whole file of at most `limit` bytes."""
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ModelError(f"{path} is no file; a file must be there, or nothing")
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise ModelError(f"{path} has {size} bytes; the limit for such a file is {limit}")
            return file.read(size)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error


def _open(path: str, flags: int) -> int:
    """A pipe without a writer is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_json(path: Path, kind: type[T], limit: int = CONFIG_BYTES) -> T:
    """The file's content as `kind`; keys that it does not name are skipped."""
    content = read_bytes(path, limit)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is damaged: {error}") from error
    except RecursionError as error:
        raise ModelError(f"{path} is nested too deeply") from error


def read_template(path: Path) -> str:
    """A template file."""
    try:
        return read_bytes(path, CONFIG_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is no UTF-8 text") from error
