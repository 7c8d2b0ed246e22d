"""From what a user calls a model to the files on this machine.

A name is, in this order: nothing (the default model), a path that exists, a model of the Hugging Face Hub
(`ORG/NAME`, `ORG/NAME@REVISION`, `hf:ORG/NAME:FILE.gguf`), or the default model's own name. Anything else is refused
with one sentence. Owns nothing; downloads happen in hub.py and store.py.
"""

from __future__ import annotations

import difflib
import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config import ModelConfig
from octavo.models.spec import ModelError
from octavo.models.store import DEFAULT_MODEL, Report, cached_default_model, default_model, terminal_report

if TYPE_CHECKING:
    from octavo.models.hub_names import HubName

logger = logging.getLogger("octavo.models")

WORKS = "a .gguf file, a directory with config.json and safetensors, or ORG/NAME of the Hugging Face Hub would work"
_HUB = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^@:\s/][^@:\s]*))?(:(?P<file>[^@:\s]+))?", re.ASCII)
_PATHLIKE = re.compile(r"[/~.\\].*|.*\.(gguf|safetensors|bin|json|jinja)")
_PAGE = re.compile(r"https?://[^/]*huggingface\.co/(?P<repo>[\w.-]+/[\w.-]+)(/.*)?|https?://.*", re.ASCII)


@dataclass(frozen=True)
class Located:
    """Files that are on this machine."""

    path: Path
    name: str | None = None
    """As the API shows it; None: the file's or directory's own."""


def parse(text: str) -> Path | HubName | None:
    """What a name means; None is the default model. ModelError says what would work."""
    if not text:
        return None
    path = Path(text)
    if _exists(path):
        return path
    if page := _PAGE.fullmatch(text):
        raise ModelError(f"MODEL is an address; {page['repo'] or 'ORG/NAME, for a model of the Hub,'} would work")
    if text.startswith("hf:"):
        return _hub_name(text, text[3:])
    if (hub := _HUB.fullmatch(text)) and (hub["file"] or not _PATHLIKE.fullmatch(text)):
        return _hub_name(text, text)
    if text.lower() == DEFAULT_MODEL.name.lower():
        return None
    raise ModelError(f"{text[:200]} does not exist{_did_you_mean(path)}; {WORKS}")


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except PermissionError:
        return True  # what opens it says which directory is closed
    except (OSError, ValueError):
        return False  # too long, or with a NUL: no path of any machine


def _hub_name(text: str, rest: str) -> HubName:
    from octavo.models.hub_names import HubName

    hub = _HUB.fullmatch(rest)
    if hub is None or ".." in rest or "--" in hub["repo"] or len(rest) > 300:
        raise ModelError(
            f"{text[:200]!r} names no model of the Hugging Face Hub; ORG/NAME, ORG/NAME@REVISION or "
            "hf:ORG/NAME:FILE.gguf would work"
        )
    return HubName(hub["repo"], hub["revision"], hub["file"])


def _did_you_mean(path: Path) -> str:
    folder = path.parent
    try:
        names = [entry.name for entry in folder.iterdir()] if _exists(folder) and folder.is_dir() else []
    except OSError:
        names = []
    if str(folder) == ".":
        names.append(DEFAULT_MODEL.name)
    near = difflib.get_close_matches(path.name, names, 1, 0.75)
    return f" (did you mean {folder / near[0]}?)" if near else ""


def cached_model(text: str) -> Located | None:
    """The model's files where they are on this machine; None where they are still to be fetched."""
    name = parse(text)
    if name is None:
        path = cached_default_model()
        return Located(path, DEFAULT_MODEL.name) if path is not None else None
    if isinstance(name, Path):
        return Located(name)
    from octavo.models.hub import cached

    found = cached(name)
    return None if found is None else _located(name, found)


def fetch_model(text: str, report: Report | None = None) -> Located:
    """The model's files, downloaded or renewed where it is not a path. Without `report`, a terminal gets a line."""
    name = parse(text)
    if name is None:
        return Located(default_model(report), DEFAULT_MODEL.name)
    if isinstance(name, Path):
        return Located(name)
    from octavo.models.hub import fetch

    return _located(name, fetch(name, report or terminal_report()))


def locate_model(model: ModelConfig, report: Report | None = None) -> ModelConfig:
    """The configuration with a path in place of a name; downloads what is not there."""
    found = cached_model(model.path) or fetch_model(model.path, report)
    return with_files(model, found)


def with_files(model: ModelConfig, found: Located) -> ModelConfig:
    return replace(model, path=str(found.path), name=model.name or found.name)


def _located(name: HubName, path: Path) -> Located:
    from octavo.models.hub_names import repo_folder

    snapshots = repo_folder(name.repo) / "snapshots"
    commit = path.relative_to(snapshots).parts[0]
    logger.info("%s is at revision %s; octavo pull %s asks for a newer one", name, commit[:12], name)
    return Located(path, name.repo if path.is_dir() else None)
