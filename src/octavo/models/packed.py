"""Packed weights in the cache: which there are, of which model, when last used; and how they are removed.

Beside each arena NAME.arena lies NAME.json, written again at every start that uses it: its time is the last use. An
arena is removed by unlinking it, under the lock that packing takes: an engine that has it mapped keeps its memory and
never notices, and only its next start packs again. Off switch: none.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from octavo.models.digest import write_atomically
from octavo.models.store import cache_dir, cache_error


@dataclass(frozen=True)
class PackedWeights:
    """One arena."""

    path: Path
    model: str
    """As the model called itself; empty where nothing says."""
    source: str
    """The path that was served."""
    bytes: int
    last_used: float
    """Seconds since 1970."""
    layout: str
    """Another build may lay weights out otherwise, and never reads this one; empty where nothing says."""


def packed_dir() -> Path:
    return cache_dir() / "packed"


def note_use(arena: Path, model: str, source: str, layout: str) -> None:
    """Called at each start. `layout`: what this build calls its own.

    A cache that cannot be written only makes `octavo models` know less.
    """
    record = {"model": model, "source": str(Path(source).absolute()) if source else "", "layout": layout}
    try:
        write_atomically(_record(arena), json.dumps(record).encode())
    except OSError:
        return


def packed_weights() -> list[PackedWeights]:
    """Last used first."""
    found = [_describe(path) for path in _arenas()]
    return sorted((one for one in found if one is not None), key=lambda one: -one.last_used)


def _arenas() -> list[Path]:
    folder = packed_dir()
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cache_error(folder, error) from error
    return [folder / name for name in names if name.endswith(".arena")]


def remove(one: PackedWeights) -> bool:
    """False where an engine is packing it at this moment."""
    try:
        with FileLock(f"{one.path}.lock", timeout=0):
            for path in (one.path, _record(one.path), one.path.with_suffix(".partial")):
                path.unlink(missing_ok=True)
    except Timeout:
        return False
    return True


def _record(arena: Path) -> Path:
    return arena.with_suffix(".json")


def _describe(path: Path) -> PackedWeights | None:
    try:
        status = path.stat()
    except OSError:
        return None  # removed in between
    model, source, layout, used = "", "", "", status.st_mtime
    try:
        content: Any = json.loads(_record(path).read_bytes())
        model, source, layout = str(content["model"]), str(content["source"]), str(content["layout"])
        used = _record(path).stat().st_mtime
    except (OSError, ValueError, LookupError, TypeError):
        pass  # written by a version that kept no such record
    return PackedWeights(path, model, source, status.st_size, used, layout)
