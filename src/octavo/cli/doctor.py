"""`octavo doctor`: what this machine has, what a model's files hold, what Octavo would choose, and every limit.

Loads no weights and downloads nothing. The exit code is 1 where the model would not start.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import octavo
from octavo.cli.model_facts import ModelFacts, as_json, lines, model_facts
from octavo.config import ENVIRONMENT, EngineConfig, ServerConfig, environment
from octavo.models.locate import cached_model, parse
from octavo.models.spec import ModelError

SERVER_WIDE = ("host", "port", "drain_seconds", "access_log")
"""Settings of the server that bound no single request."""

SECRETS = ("HF_TOKEN",)
"""Variables whose value is not shown."""


def report(engine: EngineConfig, say: Callable[[str], None]) -> bool:
    """Says the lines as they become known; False where the model is refused."""
    machine = _machine()
    say(f"octavo {machine['octavo']}, Python {machine['python']}, {machine['system']}")
    say(f"cpus       {machine['cpus']} of {os.cpu_count()} may be used")
    say(f"isas       {', '.join(machine['isas'])} (best first; --isa forces one, the bits are the same)")
    say(f"memory     {machine['memory_available'] / 2**30:.1f} GiB available")
    say(f"cache      {machine['cache']}")
    facts, refusal = _model(engine)
    _say_model(engine, facts, refusal, say)
    settings = asdict(ServerConfig())
    say("server (defaults)")
    for name in SERVER_WIDE:
        say(f"  {name:<18} {settings.pop(name)}")
    say("limits of one request")
    for name, value in settings.items():
        say(f"  {name:<18} {value}")
    say("environment")
    for name, meaning in ENVIRONMENT.items():
        value = environment(name)
        if value is not None and name in SECRETS:
            value = "set"
        say(f"  {name:<18} {value or 'not set'} ({meaning})")
    return refusal is None


def report_json(engine: EngineConfig, say: Callable[[str], None]) -> bool:
    """The same as one JSON object."""
    facts, refusal = _model(engine)
    say(
        json.dumps(
            {
                "machine": _machine(),
                "name": engine.model.path,
                "starts": None if facts is None and refusal is None else refusal is None,
                "refusal": refusal,
                "model": None if facts is None else as_json(facts),
                "limits": asdict(ServerConfig()),
            }
        )
    )
    return refusal is None


def _machine() -> dict[str, Any]:
    from octavo import _native
    from octavo.execution.machine import available_bytes
    from octavo.models.store import cache_dir

    return {
        "octavo": octavo.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": _native.cpu_count(),
        "isas": list(_native.isas()),
        "memory_available": available_bytes(),
        "cache": str(cache_dir()),
    }


def _model(engine: EngineConfig) -> tuple[ModelFacts | None, str | None]:
    """The facts (None: not on this machine) and why it would not start."""
    try:
        found = cached_model(engine.model.path)
    except ModelError as error:
        return None, str(error)
    if found is None:
        return None, None
    facts = model_facts(found.path, engine)
    return facts, facts.refusal


def _say_model(engine: EngineConfig, facts: ModelFacts | None, refusal: str | None, say: Callable[[str], None]) -> None:
    named = engine.model.path
    if facts is None and refusal is None:
        what = f"{parse(named)} is" if named else "the default model is"
        say(f"model      {what} not fetched yet; octavo pull {named}".rstrip() + " does it, and says all about it")
        return
    shown = named if facts is None else facts.inspection.path
    say(f"model      {shown}" + (f": REFUSED: {refusal}" if refusal is not None else ""))
    for line in lines(facts) if facts is not None else ():
        say(line)
