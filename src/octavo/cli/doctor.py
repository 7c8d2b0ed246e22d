"""`octavo doctor`: what this machine has, what Octavo would choose, and every limit. Loads no weights."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, replace

import octavo
from octavo.config import ENVIRONMENT, ConfigError, EngineConfig, ServerConfig, environment, explain
from octavo.models.spec import ModelError

SERVER_WIDE = ("host", "port", "drain_seconds", "access_log")
"""Settings of the server that bound no single request."""


def report(engine: EngineConfig, say: Callable[[str], None]) -> bool:
    """Says the lines as they become known; False where the model is refused."""
    from octavo import _native
    from octavo.execution.machine import available_bytes
    from octavo.models.store import cache_dir

    say(f"octavo {octavo.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    say(f"cpus       {_native.cpu_count()} of {os.cpu_count()} may be used")
    say(f"isas       {', '.join(_native.isas())} (best first; --isa forces one, the bits are the same)")
    say(f"memory     {available_bytes() / 2**30:.1f} GiB available")
    say(f"cache      {cache_dir()}")
    served = _model(engine, say)
    settings = asdict(ServerConfig())
    say("server (defaults)")
    for name in SERVER_WIDE:
        say(f"  {name:<18} {settings.pop(name)}")
    say("limits of one request")
    for name, value in settings.items():
        say(f"  {name:<18} {value}")
    say("environment")
    for name, meaning in ENVIRONMENT.items():
        say(f"  {name:<18} {environment(name) or 'not set'} ({meaning})")
    return served


def _model(engine: EngineConfig, say: Callable[[str], None]) -> bool:
    """What the model is and what it would get; False where it is refused."""
    from octavo.execution.factory import plan_resources
    from octavo.models.store import cached_default_model

    path = engine.model.path or str(cached_default_model() or "")
    if not path:
        say("model      the default model is not fetched yet; octavo serve does it")
        return True
    try:
        spec, config, budget = plan_resources(replace(engine, model=replace(engine.model, path=path)))
    except (ModelError, ConfigError) as error:
        say(f"model      {path}: REFUSED: {error}")
        return False
    say(
        f"model      {path}: {spec.architecture}, {spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads "
        f"({spec.kv_heads} KV), vocabulary {spec.vocab}, context {spec.max_context}"
    )
    for line in explain(config, budget):
        say(line)
    execution = config.execution
    say(
        f"runs       {execution.isa}, {execution.threads} threads, {execution.attention} attention, program "
        f"{'on' if execution.program else 'off'}"
    )
    return True
