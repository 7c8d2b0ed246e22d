"""`octavo doctor`: what this machine has, what a model's files hold, what Octavo would choose, and every limit.

Loads no weights. Of a model of the Hub that is not here yet it fetches the configuration alone. The exit code is 1
where the model would not start.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import octavo
from octavo.cli.model_facts import as_json, lines, model_facts, spec_json, spec_lines
from octavo.cli.server_options import lines as server_lines
from octavo.config import ENVIRONMENT, EngineConfig, ServerConfig, environment
from octavo.kvcache.tiers.policy import survey
from octavo.models.inspection import inspect_config
from octavo.models.locate import cached_model, parse
from octavo.models.spec import ModelError

_SERVER = ServerConfig()

SECRETS = ("HF_TOKEN", "OCTAVO_API_KEY")
"""Variables whose value is not shown."""


def report(engine: EngineConfig, say: Callable[[str], None], server: ServerConfig = _SERVER) -> bool:
    """Says the lines as they become known; False where the model is refused."""
    machine = _machine()
    say(f"octavo {machine['octavo']}, Python {machine['python']}, {machine['system']}")
    say(f"cpus       {machine['cpus']} of {os.cpu_count()} may be used")
    say(f"isas       {', '.join(machine['isas'])} (best first; --isa forces one, the bits are the same)")
    say(f"memory     {machine['memory_available'] / 2**30:.1f} GiB available")
    say(f"cache      {machine['cache']}")
    if engine.kv.disk is not None:
        say(f"kv disk    {engine.kv.disk}: {survey(Path(engine.kv.disk))}")
    answer = _ask(engine)
    for line in answer.lines:
        say(line)
    for line in server_lines(server):
        say(line)
    say("environment")
    for name, meaning in ENVIRONMENT.items():
        value = environment(name)
        if value is not None and name in SECRETS:
            value = "set"
        say(f"  {name:<18} {value or 'not set'} ({meaning})")
    return answer.refusal is None


def report_json(engine: EngineConfig, say: Callable[[str], None], server: ServerConfig = _SERVER) -> bool:
    """The same as one JSON object."""
    answer = _ask(engine)
    disk = None if engine.kv.disk is None else survey(Path(engine.kv.disk))
    body = {
        "machine": _machine(),
        "name": engine.model.path,
        "here": answer.here,
        "starts": answer.refusal is None,
        "kv_disk": disk,
    }
    say(json.dumps({**body, "refusal": answer.refusal, "model": answer.json, "limits": asdict(server)}))
    return answer.refusal is None


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


@dataclass(frozen=True)
class _Answer:
    """About the model."""

    lines: list[str]
    json: dict[str, Any] | None
    refusal: str | None
    here: bool
    """On this machine."""


def _ask(engine: EngineConfig) -> _Answer:
    named = engine.model.path
    try:
        found = cached_model(named)
        if found is None:
            return _ask_the_hub(named)
    except ModelError as error:
        return _Answer([f"model      {named}: REFUSED: {error}"], None, str(error), False)
    facts = model_facts(found.path, engine)
    refused = f": REFUSED: {facts.refusal}" if facts.refusal is not None else ""
    return _Answer([f"model      {found.path}{refused}", *lines(facts)], as_json(facts), facts.refusal, True)


def _ask_the_hub(named: str) -> _Answer:
    """A model that is still to be downloaded: how much that is, and what its configuration says."""
    name = parse(named)
    if name is None:
        return _Answer(["model      the default model is not fetched yet; octavo pull does it"], None, None, False)
    assert not isinstance(name, Path)
    from octavo.models.hub import announce

    coming = announce(name)
    seen = inspect_config(coming.config) if coming.config is not None else None
    refusal = None if seen is None else seen.refusal
    refused = f": REFUSED: {refusal}" if refusal is not None else f"; octavo pull {named} fetches it"
    said = [f"model      {name} is not here yet: {len(coming.files)} files, {coming.bytes / 1e6:.1f} MB{refused}"]
    if seen is not None and seen.spec is not None:
        said += spec_lines(seen.spec)
    content = {
        "files": [{"path": file.path, "bytes": file.size} for file in coming.files],
        "bytes": coming.bytes,
        "architecture": None if seen is None else seen.architecture,
        "spec": None if seen is None or seen.spec is None else spec_json(seen.spec),
    }
    return _Answer(said, content, refusal, False)
