"""`octavo convert`: a model in the other format, or with matrices of another type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octavo.models.convert.run import convert
from octavo.models.locate import cached_model, fetch_model
from octavo.models.names import Naming
from octavo.models.store import terminal_report


def run_convert(source: str, target: Path, to: str | None, kind: str | None, say: Callable[[str], None]) -> None:
    """Says what was made, and each loss on a line of its own."""
    found = cached_model(source) or fetch_model(source)
    naming: Naming | None = None if to is None else "gguf" if to == "gguf" else "hf"
    result = convert(found.path, target, naming, kind.upper() if kind else None, terminal_report())
    say(f"{result.path}: {result.nbytes / 1e6:.1f} MB of tensors")
    for note in result.notes:
        say(f"note: {note}")
