"""`octavo verify`: does load change bits on this machine? The exit code is 1 where it does."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path

from octavo.config import ConfigError, EngineConfig
from octavo.verify.matrix import verify


def run_verify(
    engine: EngineConfig, quick: bool, seed: int | None, json_path: str | None, say: Callable[[str], None]
) -> bool:
    """Says a line a cell; True where every cell was equal."""
    if engine.execution.backend != "cpu":
        raise ConfigError(
            f"octavo verify checks the native kernels, and --backend {engine.execution.backend} has none; "
            "--backend cpu would work"
        )
    report = verify(engine, quick, secrets.randbelow(1 << 31) if seed is None else seed, say)
    for line in report.lines():
        say(line)
    if json_path is not None:
        Path(json_path).write_text(json.dumps(report.as_json(), indent=1) + "\n")
    return report.equal
