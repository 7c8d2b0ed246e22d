"""Parts of a long row, kept as they finish: a row that was broken off goes on from them.

A file a row under bars/, one JSON line a part, of the commit and form that it names; any other content is dropped.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path("bars")


def commit() -> str:
    """The commit measured, marked where the tree differs from it."""
    found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


class Kept:
    """The finished parts of one row."""

    def __init__(self, name: str, short: bool) -> None:
        self._path = RESULTS / f"{name}{'.short' if short else ''}.parts.jsonl"
        self._head = {"name": name, "commit": commit(), "short": short}
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        dirty = "dirty" in self._head["commit"]
        same = bool(lines) and not dirty and json.loads(lines[0]) == self._head
        self.parts: list[Any] = [json.loads(line) for line in lines[1:]] if same else []
        RESULTS.mkdir(exist_ok=True)
        self._write([self._head, *self.parts])

    def upto(self, count: int, make: Callable[[], Any]) -> list[Any]:
        """The kept parts and as many new ones as are missing, each saved at once. Parts are JSON values."""
        while len(self.parts) < count:
            self.parts.append(make())
            self._write([self._head, *self.parts])
        return self.parts[:count]

    def done(self) -> None:
        """The row's result is out: its parts go."""
        self._path.unlink(missing_ok=True)

    def _write(self, values: list[Any]) -> None:
        part = self._path.with_suffix(".part")
        part.write_text("".join(json.dumps(value) + "\n" for value in values))
        part.replace(self._path)
