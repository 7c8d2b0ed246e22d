"""What lies in the Hugging Face cache: models that Octavo can serve, their sizes, and how they are removed.

The cache belongs to other programs too. A model is removed only by its name: its entries in the snapshots, and then
each content that no entry of the repository points to any more. Off switch: none.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from octavo.models.gguf import read_gguf
from octavo.models.hub_files import choose_gguf, gguf_groups, has_safetensors
from octavo.models.hub_names import HubName, hub_cache, repo_folder
from octavo.models.jsonfile import read_json
from octavo.models.registry import ARCHITECTURES
from octavo.models.spec import ModelError


@dataclass(frozen=True)
class CachedModel:
    """One model in one snapshot."""

    name: HubName
    """With the commit as revision, and the file where it is GGUF."""
    revisions: tuple[str, ...]
    """Names of the commit, such as main."""
    architecture: str
    supported: bool
    bytes: int


def cached_models() -> list[CachedModel]:
    """By name. Content that several snapshots share counts in each."""
    found = []
    for folder in sorted(hub_cache().glob("models--*--*")):
        repo = _repo_of(folder)
        names = _revision_names(folder)
        for snapshot in sorted((folder / "snapshots").glob("*")):
            found += _models_in(repo, snapshot, tuple(names.get(snapshot.name, ())))
    return found


def _revision_names(folder: Path) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    refs = folder / "refs"
    for path in sorted(refs.rglob("*")):
        if path.is_file():
            names.setdefault(_commit_in(path), []).append(path.relative_to(refs).as_posix())
    return names


def _commit_in(ref: Path) -> str:
    try:
        return ref.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def unfinished() -> dict[str, int]:
    """Repository -> bytes that an interrupted download has left."""
    found: dict[str, int] = {}
    for path in sorted(hub_cache().glob("models--*--*/blobs/*.incomplete")):
        repo = _repo_of(path.parents[1])
        found[repo] = found.get(repo, 0) + _size(path)
    return found


def _repo_of(folder: Path) -> str:
    return folder.name.removeprefix("models--").replace("--", "/", 1)


def _models_in(repo: str, snapshot: Path, revisions: tuple[str, ...]) -> list[CachedModel]:
    files = _files(snapshot)
    found = []
    if has_safetensors(files):
        architecture, supported = _of_config(snapshot / "config.json")
        size = sum(_size(snapshot / name) for name in files)
        found.append(CachedModel(HubName(repo, snapshot.name), revisions, architecture, supported, size))
    for group in gguf_groups(files):
        if not group.missing:
            architecture, supported = _of_gguf(snapshot / group.name)
            size = sum(_size(snapshot / name) for name in group.files)
            name = HubName(repo, snapshot.name, group.name)
            found.append(CachedModel(name, revisions, architecture, supported, size))
    return found


def _files(snapshot: Path) -> list[str]:
    return sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())


def _of_config(path: Path) -> tuple[str, bool]:
    try:
        values: dict[str, Any] = read_json(path, dict)
    except ModelError:
        return "config.json is damaged", False
    classes = values.get("architectures")
    named = str(classes[0] if isinstance(classes, list) and classes else values.get("model_type"))
    return named[:60], any(named in one.hf_classes or named in one.model_types for one in ARCHITECTURES)


def _of_gguf(path: Path) -> tuple[str, bool]:
    try:
        file = read_gguf(path)
    except ModelError:
        return "the file is damaged", False
    named = str(file.metadata.get("general.architecture"))
    file.close()
    return named[:60], any(named in one.gguf_names for one in ARCHITECTURES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def entries_of(name: HubName) -> list[Path]:
    """The entries of the snapshots that make up a model; without a revision, those of all revisions."""
    folder = repo_folder(name.repo)
    snapshots = sorted((folder / "snapshots").glob("*"))
    if name.revision is not None:
        commits = {name.revision}
        ref = folder / "refs" / name.revision
        if ref.is_file():
            commits.add(_commit_in(ref))
        snapshots = [snapshot for snapshot in snapshots if snapshot.name in commits]
    return [entry for snapshot in snapshots for entry in _entries_in(snapshot, name)]


def _entries_in(snapshot: Path, name: HubName) -> list[Path]:
    files = _files(snapshot)
    if name.file is None:
        return [path for path in snapshot.rglob("*") if not path.is_dir() or path.is_symlink()]
    try:
        return [snapshot / file for file in choose_gguf(name.repo, name.spelt, files, name.file).files]
    except ModelError:
        return []


def size_of(name: HubName) -> int:
    """Bytes that removing it would free, if nothing else points to them."""
    contents = {entry.resolve() for entry in entries_of(name)}
    if name.revision is None and name.file is None:
        contents |= set((repo_folder(name.repo) / "blobs").glob("*"))
    return sum(_size(content) for content in contents)


def remove(name: HubName) -> int:
    """Bytes freed. ModelError where the model is being downloaded at this moment."""
    folder = repo_folder(name.repo)
    locks = hub_cache() / ".locks" / folder.name
    locks.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(locks / "octavo.lock", timeout=0):
            freed = _remove_entries(folder, entries_of(name))
            whole = not any(path.is_file() for path in (folder / "snapshots").rglob("*"))
            if whole:
                freed += sum(_size(path) for path in (folder / "blobs").glob("*"))
                shutil.rmtree(folder, ignore_errors=True)
    except Timeout:
        raise ModelError(f"{name} is being downloaded at this moment: end that first") from None
    if whole:
        shutil.rmtree(locks, ignore_errors=True)
    return freed


def _remove_entries(folder: Path, entries: list[Path]) -> int:
    contents = {entry.resolve() for entry in entries}
    for entry in entries:
        entry.unlink(missing_ok=True)
    snapshots = folder / "snapshots"
    kept = {path.resolve() for path in snapshots.rglob("*") if path.is_file()}
    freed = 0
    for content in contents - kept:
        if content.is_relative_to((folder / "blobs").resolve()):
            freed += _size(content)
            content.unlink(missing_ok=True)
    for snapshot in snapshots.glob("*"):
        for directory, _, _ in os.walk(snapshot, topdown=False):
            if not os.listdir(directory):
                os.rmdir(directory)
    refs = folder / "refs"
    for ref in [path for path in refs.rglob("*") if path.is_file()]:
        if not (snapshots / (_commit_in(ref) or "none")).is_dir():
            ref.unlink()
    return freed
