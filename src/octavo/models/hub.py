"""Models of the Hugging Face Hub, through its own library and in its own cache.

Life of a model: `fetch` asks the Hub which files a revision has, fetches the small ones, then the weights, each into
a partial file that a later call goes on with, proves large ones by their SHA-256, and last of all writes the
revision's name (`refs/`) into the cache: a revision that has a name there is whole. `cached` finds such a one without
a network, so that a start neither waits for the Hub nor gets other weights than the start before; `fetch` is what
renews it. Variables of the library hold: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE. The library is
imported when a model of the Hub is named, never before. Off switch: name a file or a directory.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from filelock import FileLock

import octavo
from octavo.models.digest import hash_file, remember, write_atomically
from octavo.models.hub_errors import megabytes, no_space, told_in_one_sentence
from octavo.models.hub_files import (
    INDEX,
    TOKENIZERS,
    choose_gguf,
    has_safetensors,
    safetensors_files,
    small_files,
)
from octavo.models.hub_names import HubName, hub_cache, repo_folder
from octavo.models.jsonfile import read_json
from octavo.models.spec import ModelError
from octavo.models.store import Report, cache_dir, locked

logger = logging.getLogger("octavo.models")

_INDEX_LIMIT = 1 << 26
_HTTP_LIMIT = 50_000_000_000
"""Larger files come only over the library's own transfer protocol, which cannot go on with a partial file."""
_TIMEOUT_SECONDS = 15.0
_CONNECTIONS = 4
_PATIENCE_SECONDS = 1.0
"""For a thread to notice that it is to stop, which it does with its next piece."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubFile:
    """A file of a revision, as the Hub describes it."""

    path: str
    size: int
    sha256: str | None
    """None: a small file, which the Hub keeps under another digest."""


@dataclass(frozen=True)
class Listing:
    """A revision's files."""

    commit: str
    files: dict[str, HubFile]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


# --- what is there already -----------------------------------------------------------------------------


def cached(name: HubName) -> Path | None:
    """The model's directory or first GGUF file where all of it is in the cache; asks nobody."""
    commit = _cached_commit(name)
    if commit is None:
        return None
    folder = repo_folder(name.repo) / "snapshots" / commit
    return _whole_model(folder, name) if folder.is_dir() else None


def _cached_commit(name: HubName) -> str | None:
    revision = name.revision or "main"
    if _COMMIT.fullmatch(revision):
        return revision
    try:
        commit = (repo_folder(name.repo) / "refs" / revision).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _whole_model(folder: Path, name: HubName) -> Path | None:
    """Snapshots of other programs may hold a part of a model: all that Octavo needs must be there."""
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    try:
        if name.file is None and has_safetensors(files):
            weight_map = read_json(folder / INDEX, _Index, _INDEX_LIMIT).weight_map if INDEX in files else None
            safetensors_files(name.repo, files, weight_map)
            return folder if any(tokenizer in files for tokenizer in TOKENIZERS) else None
        return folder / choose_gguf(name.repo, name.spelt, files, name.file).name
    except ModelError:
        return None


# --- fetching ------------------------------------------------------------------------------------------


def fetch(name: HubName, report: Report) -> Path:
    """Downloads what is not there yet of the revision as it is now; the model's directory or first GGUF file."""
    with told_in_one_sentence(name):
        listing = list_files(name)
        storage = repo_folder(name.repo)
        locks = hub_cache() / ".locks" / storage.name
        locks.mkdir(parents=True, exist_ok=True)
        with locked(FileLock(locks / "octavo.lock"), report):
            path = _Download(name, listing, storage, report).run()
            _name_revision(storage, name.revision or "main", listing.commit)
    return path


@dataclass(frozen=True)
class Announced:
    """A model that is not here yet."""

    files: tuple[HubFile, ...]
    config: Path | None
    """Its config.json, which is; None for a GGUF model."""

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def announce(name: HubName) -> Announced:
    """What `fetch` would download; asks the Hub, and fetches config.json alone."""
    with told_in_one_sentence(name):
        listing = list_files(name)
        storage = repo_folder(name.repo)
        files = _Download(name, listing, storage, lambda what, fraction: None).announce()
        config = storage / "snapshots" / listing.commit / "config.json"
        return Announced(tuple(files), config if any(file.path == "config.json" for file in files) else None)


def list_files(name: HubName) -> Listing:
    """One question to the Hub."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="octavo", library_version=octavo.__version__)
    info = api.model_info(name.repo, revision=name.revision or "main", files_metadata=True, timeout=_TIMEOUT_SECONDS)
    if not info.sha or not _COMMIT.fullmatch(info.sha) or info.siblings is None:
        raise ModelError(f"{api.endpoint} did not say which files {name.repo} has; is HF_ENDPOINT a Hub?")
    files = {}
    for sibling in info.siblings:
        path = PurePosixPath(sibling.rfilename)
        if path.is_absolute() or ".." in path.parts:
            raise ModelError(f"{name.repo} holds a file named {sibling.rfilename!r}, which leaves its directory")
        digest = sibling.lfs.sha256 if sibling.lfs is not None else None
        files[sibling.rfilename] = HubFile(sibling.rfilename, sibling.size or 0, digest)
    return Listing(info.sha, files)


def _name_revision(storage: Path, revision: str, commit: str) -> None:
    """Last of all, so that a name stands for whole revisions alone."""
    if revision == commit:
        return
    ref = storage / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(ref, commit.encode())


class _Download:
    """One call of `fetch`, under the repository's lock."""

    def __init__(self, name: HubName, listing: Listing, storage: Path, report: Report) -> None:
        self._name = name
        self._listing = listing
        self._storage = storage
        self._folder = storage / "snapshots" / listing.commit
        self._report = report
        self._total = 0
        self._done = 0
        self._what = ""
        self._lock = threading.Lock()
        self._stopped = False

    def run(self) -> Path:
        files = self._listing.files
        if self._name.file is None and has_safetensors(files):
            self._fetch_all(small_files(files))
            self._fetch_all(safetensors_files(self._name.repo, files, self._weight_map()))
            return self._folder
        names = self._gguf_files()
        self._fetch_all(names)
        return self._folder / names[0]

    def announce(self) -> list[HubFile]:
        """The files that `run` would fetch; only the configuration comes."""
        files = self._listing.files
        if self._name.file is None and has_safetensors(files):
            for name in ("config.json", INDEX):
                if name in files and not self._is_whole(files[name]):
                    self._fetch_small(files[name], lambda count: None)
            weights = safetensors_files(self._name.repo, files, self._weight_map())
            return [files[name] for name in (*small_files(files), *weights)]
        return [files[name] for name in self._gguf_files()]

    def _weight_map(self) -> dict[str, str] | None:
        if INDEX not in self._listing.files:
            return None
        return read_json(self._folder / INDEX, _Index, _INDEX_LIMIT).weight_map

    def _gguf_files(self) -> list[str]:
        """A template beside the file, if there is one, and the parts, of which the first comes first."""
        files = self._listing.files
        group = choose_gguf(self._name.repo, self._name.spelt, files, self._name.file)
        template = str(PurePosixPath(group.name).with_suffix(".jinja"))
        return [*group.files, *([template] if template in files else [])]

    def _fetch_all(self, names: list[str]) -> None:
        wanted = [self._listing.files[name] for name in names]
        missing = [file for file in wanted if not self._is_whole(file)]
        self._total = sum(file.size for file in missing)
        self._done = sum(_size(self._partial(file)) for file in missing)
        self._check_space(self._total - self._done)
        self._what = f"Downloading {self._name.repo}, {megabytes(self._total)}"
        if not missing:
            return
        self._advance(0)
        large = [file for file in missing if file.sha256 is not None and file.size <= _HTTP_LIMIT]
        for file in missing:
            if file not in large:
                self._fetch_small(file, self._advance)
        self._fetch_several(large)
        self._advance(self._total)

    def _fetch_several(self, files: list[HubFile]) -> None:
        """A few at a time, for one connection seldom fills a line. Threads that a process need not wait for."""
        waiting, failures = deque(files), list[BaseException]()

        def work() -> None:
            while waiting and not self._stopped:
                try:
                    self._fetch_large(waiting.popleft())
                except BaseException as error:  # raised by the one who waits for the thread
                    failures.append(error)
                    self._stopped = True

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_CONNECTIONS, len(files)))]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self._stopped = True
            for thread in threads:
                thread.join(_PATIENCE_SECONDS)
            raise
        if failures:
            raise failures[0]

    def _is_whole(self, file: HubFile) -> bool:
        """A file of another size is a wreck: away with it and what it points to."""
        path = self._folder / file.path
        try:
            size = path.stat().st_size
        except OSError:
            return False
        if size == file.size:
            return True
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        return False

    def _partial(self, file: HubFile) -> Path:
        return self._storage / "blobs" / f"{file.sha256}.octavo.incomplete"

    def _advance(self, count: int) -> None:
        with self._lock:
            if self._stopped:
                raise InterruptedError(errno.EINTR, "another file failed")
            self._done += count
            self._report(self._what, min(self._done / self._total, 1.0) if self._total else 1.0)

    def _fetch_small(self, file: HubFile, advance: Callable[[int], None]) -> None:
        from huggingface_hub import hf_hub_download

        hf_hub_download(
            self._name.repo,
            file.path,
            revision=self._listing.commit,
            library_name="octavo",
            library_version=octavo.__version__,
            tqdm_class=_counter(advance),
        )
        if not self._is_whole(file):
            raise ModelError(f"{file.path} of {self._name.repo} came with another size than the {file.size} announced")

    def _fetch_large(self, file: HubFile) -> None:
        """The library throws a partial file away; this one is kept and gone on with."""
        sha256 = file.sha256
        assert sha256 is not None
        blob, partial = self._storage / "blobs" / sha256, self._partial(file)
        if _size(blob) != file.size:
            blob.unlink(missing_ok=True)
            partial.parent.mkdir(parents=True, exist_ok=True)
            self._fetch_bytes(file, partial)
            found = hash_file(partial)
            if found != sha256:
                partial.unlink()
                raise ModelError(
                    f"{file.path} of {self._name.repo} came with the SHA-256 {found} instead of {sha256}: "
                    "it was damaged on its way and was removed; the same command fetches it anew"
                )
            os.replace(partial, blob)
        # It finds the content there, and gives it its place in the snapshot.
        self._fetch_small(file, lambda count: None)
        remember(self._folder / file.path, sha256, cache_dir())

    def _fetch_bytes(self, file: HubFile, partial: Path) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = build_hf_headers(library_name="octavo", library_version=octavo.__version__)
        # Bytes as they are: a compressed answer has no length and no parts.
        headers["Accept-Encoding"] = "identity"
        with partial.open("ab") as sink:
            have = sink.tell()
            if have > file.size:
                sink.truncate(0)
                have = 0
            http_get(
                hf_hub_url(self._name.repo, file.path, revision=self._listing.commit),
                sink,
                resume_size=have,
                headers=headers,
                expected_size=file.size,
                displayed_filename=file.path,
                tqdm_class=_counter(self._advance),
            )
            sink.flush()
            os.fsync(sink.fileno())

    def _check_space(self, needed: int) -> None:
        self._storage.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._storage).free
        if needed > free:
            raise no_space(self._name, f"{megabytes(needed)} are still to come and {megabytes(free)} are free")


def _counter(advance: Callable[[int], None]) -> Any:
    """What the library takes for a progress bar: it counts, and shows nothing."""

    class Counter:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Counter:  # noqa: PYI034
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def update(self, count: float | None = 1) -> None:
            advance(int(count or 0))

        def close(self) -> None:
            pass

    return Counter


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
