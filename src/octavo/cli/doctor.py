"""`octavo doctor`: what this machine has, what Octavo would choose, and every limit. Loads no weights."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import fields, replace

import octavo
from octavo.config import ENVIRONMENT, ConfigError, EngineConfig, ServerConfig, environment, explain
from octavo.models.spec import ModelError


def report(engine: EngineConfig) -> Iterator[str]:
    """The lines, as they become known."""
    from octavo import _native
    from octavo.execution.machine import available_bytes
    from octavo.models.store import cache_dir

    yield f"octavo {octavo.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield f"cpus       {_native.cpu_count()} of {os.cpu_count()} may be used"
    yield f"isas       {', '.join(_native.isas())} (best first; --isa forces one, the bits are the same)"
    yield f"memory     {available_bytes() / 2**30:.1f} GiB available"
    yield f"cache      {cache_dir()}"
    yield from _model(engine)
    yield "limits of one request"
    for setting in fields(ServerConfig):
        yield f"  {setting.name:<18} {getattr(ServerConfig(), setting.name)}"
    yield "environment"
    for name, meaning in ENVIRONMENT.items():
        yield f"  {name:<18} {environment(name) or 'not set'} ({meaning})"


def _model(engine: EngineConfig) -> Iterator[str]:
    """What the model is and what it would get."""
    from octavo.execution.factory import plan_resources
    from octavo.models.store import cached_default_model

    path = engine.model.path or str(cached_default_model() or "")
    if not path:
        yield "model      the default model is not fetched yet; octavo serve does it"
        return
    try:
        spec, config, budget = plan_resources(replace(engine, model=replace(engine.model, path=path)))
    except (ModelError, ConfigError) as error:
        yield f"model      {path}: REFUSED: {error}"
        return
    yield (
        f"model      {path}: {spec.architecture}, {spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads "
        f"({spec.kv_heads} KV), vocabulary {spec.vocab}, context {spec.max_context}"
    )
    yield from explain(config, budget)
    execution = config.execution
    yield f"runs       {execution.isa}, {execution.threads} threads, {execution.attention} attention, program " + (
        "on" if execution.program else "off"
    )
