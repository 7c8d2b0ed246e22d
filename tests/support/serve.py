"""A server process for tests: `python -m tests.support.serve CONFIG`, with the engine that CONFIG names.

CONFIG is the JSON of `Serve`. Used by tests/support/server.py.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import msgspec

from octavo.config import EngineConfig, ServerConfig
from octavo.engine.supervisor import ENGINE_COMMAND
from octavo.observability.metrics import Histogram, Metrics
from octavo.server.run import run_server
from tests.support.system import use_system


@dataclass(frozen=True)
class Serve:
    """What to serve."""

    engine: EngineConfig
    server: ServerConfig = field(default_factory=lambda: ServerConfig(port=0))
    module: str = ""
    """Module that is the engine's process; empty: the real one."""
    broken_metrics: bool = False
    """Nothing can be recorded."""


def _broken(*arguments: object) -> None:
    raise RuntimeError("the sink is broken")


def main() -> int:
    what = msgspec.json.decode(sys.argv[1], type=Serve)
    use_system()
    if what.broken_metrics:
        for owner, name in (
            (Metrics, "_take_step"),
            (Metrics, "_take_reply"),
            (Metrics, "_count"),
            (Histogram, "observe"),
        ):
            setattr(owner, name, _broken)
    command = (sys.executable, "-m", what.module) if what.module else ENGINE_COMMAND
    return run_server(what.engine, what.server, command)


if __name__ == "__main__":
    sys.exit(main())
