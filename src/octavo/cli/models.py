"""`octavo models`: what is cached, how large it is and when it was used; `octavo models rm`: away with it.

Three kinds of things: the default model, models in the Hugging Face cache, and packed weights, which Octavo makes
again when they are missing. Removing never disturbs a running engine: it has its packed weights mapped, and reads the
model's own files only when it starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from octavo.config import ConfigError
from octavo.models import hub_cache, packed
from octavo.models.hub_cache import CachedModel, cached_models
from octavo.models.hub_names import HubName, repo_folder
from octavo.models.hub_names import hub_cache as hub_directory
from octavo.models.locate import parse
from octavo.models.packed import PackedWeights, packed_weights
from octavo.models.spec import ModelError
from octavo.models.store import DEFAULT_MODEL, cache_dir, cached_bytes

Say = Callable[[str], None]
_DAY = 86400.0


def show(say: Say, as_json: bool = False) -> None:
    """What is cached, with totals."""
    default, hub, arenas = _default_bytes(), cached_models(), packed_weights()
    if as_json:
        say(_json(default, hub, arenas))
        return
    rows = []
    if default:
        rows.append(f"{DEFAULT_MODEL.name:<60} {_size(default):>10}  the default model")
    rows += [_hub_row(model) for model in hub if model.supported]
    for row in rows or ["no model is cached; octavo pull ORG/NAME fetches one"]:
        say(row)
    others = [model for model in hub if not model.supported]
    if others:
        kinds = ", ".join(sorted({model.architecture for model in others})[:4])
        say(f"and {len(others)} of other kinds ({kinds}), {_size(sum(model.bytes for model in others))}")
    for repo, size in hub_cache.unfinished().items():
        say(f"{repo}: {_size(size)} of an unfinished download; octavo pull goes on, octavo models rm {repo} removes it")
    if arenas:
        say("packed weights")
    for one in arenas:
        stale = "  of another version: octavo models rm --stale" if one.layout != _layout() else ""
        say(f"  {one.model or one.path.stem:<58} {_size(one.bytes):>10}  used {_ago(one.last_used)}{stale}")
    say(f"total {_size(default + sum(one.bytes for one in arenas))} in {cache_dir()}")
    if hub:
        say(f"total {_size(sum(model.bytes for model in hub))} in {hub_directory()}")


def _default_path() -> Path:
    return cache_dir() / "models" / DEFAULT_MODEL.file


def _default_bytes() -> int:
    return cached_bytes(_default_path())


def _layout() -> str:
    from octavo.ops.cpu.packing import layout_id

    return layout_id()


def _hub_row(model: CachedModel) -> str:
    commit = (model.name.revision or "")[:12]
    shown = model.name.repo + (f":{model.name.file}" if model.name.file else "")
    return f"{shown:<60} {_size(model.bytes):>10}  {model.architecture}, {', '.join(model.revisions) or 'at'} {commit}"


def _json(default: int, hub: list[CachedModel], arenas: list[PackedWeights]) -> str:
    return json.dumps(
        {
            "default": {"name": DEFAULT_MODEL.name, "bytes": default} if default else None,
            "hub": [
                {
                    "name": str(model.name),
                    "revisions": model.revisions,
                    "architecture": model.architecture,
                    "supported": model.supported,
                    "bytes": model.bytes,
                }
                for model in hub
            ],
            "packed": [
                {
                    "path": str(one.path),
                    "model": one.model,
                    "source": one.source,
                    "bytes": one.bytes,
                    "last_used": one.last_used,
                    "stale": one.layout != _layout(),
                }
                for one in arenas
            ],
        }
    )


# --- removing --------------------------------------------------------------------------------------------


@dataclass
class _Chosen:
    """What is to go."""

    default: bool = False
    hub: list[HubName] = field(default_factory=list)
    arenas: list[PackedWeights] = field(default_factory=list)

    def lines(self) -> list[str]:
        said = [f"{DEFAULT_MODEL.name}, {_size(_default_bytes())}"] if self.default else []
        for name in self.hub:
            said.append(f"{name}, {_size(hub_cache.size_of(name))}")
        for one in self.arenas:
            said.append(
                f"packed weights of {one.model or one.path.stem}, {_size(one.bytes)}, used {_ago(one.last_used)}"
            )
        return said


@dataclass(frozen=True)
class Selection:
    """What the command line asks to remove."""

    names: tuple[str, ...] = ()
    packed: bool = False
    stale: bool = False
    unused_days: float | None = None


def remove(selection: Selection, say: Say, confirm: Callable[[str], bool]) -> None:
    """Shows what would go, asks, and removes it."""
    chosen = _choose(selection)
    lines = chosen.lines()
    if not lines:
        say("nothing to remove")
        return
    for line in lines:
        say(line)
    if not confirm(f"Remove {'it' if len(lines) == 1 else f'these {len(lines)}'}?"):
        say("nothing was removed")
        return
    freed = 0
    if chosen.default:
        freed += _default_bytes()
        _default_path().unlink(missing_ok=True)
    for name in chosen.hub:
        freed += hub_cache.remove(name)
    for one in chosen.arenas:
        if packed.remove(one):
            freed += one.bytes
        else:
            say(f"{one.path.name} is being packed at this moment and stays")
    say(f"{_size(freed)} freed")


def _choose(selection: Selection) -> _Chosen:
    if not (selection.names or selection.packed or selection.stale or selection.unused_days is not None):
        raise ConfigError("octavo models rm needs a NAME, --packed, --stale or --unused-for DAYS; octavo models lists")
    chosen = _Chosen()
    packed = packed_weights()
    listed = {one.model for one in packed if one.model} & set(selection.names)
    sources = [_choose_name(text, chosen) for text in selection.names if text not in listed]
    chosen.arenas = [one for one in packed if one.model in listed or _is_of(one, sources) or _is_wanted(one, selection)]
    return chosen


def _is_wanted(one: PackedWeights, selection: Selection) -> bool:
    """--stale and --unused-for narrow one another down."""
    if not (selection.packed or selection.stale or selection.unused_days is not None):
        return False
    if selection.stale and not selection.packed and one.layout == _layout():
        return False
    return selection.unused_days is None or one.last_used < time.time() - selection.unused_days * _DAY


def _choose_name(text: str, chosen: _Chosen) -> Path:
    """Adds the model; where its files lie."""
    name = parse(text)
    if name is None:
        if not _default_bytes():
            raise ModelError(f"{DEFAULT_MODEL.name} is not cached; octavo models lists what is")
        chosen.default = True
        return _default_path()
    if isinstance(name, Path):
        raise ModelError(
            f"{name} is a file of yours, and octavo models rm removes only what is cached: delete it yourself"
        )
    entries = hub_cache.entries_of(name)
    folder = repo_folder(name.repo)
    if not entries and not (name.revision is None and name.file is None and folder.is_dir()):
        raise ModelError(f"{name} is not in the cache {hub_directory()}; octavo models lists what is")
    chosen.hub.append(name)
    return folder if name.file is None else entries[0]


def _is_of(one: PackedWeights, sources: list[Path]) -> bool:
    return bool(one.source) and any(Path(one.source).is_relative_to(source.absolute()) for source in sources)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("day", _DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
