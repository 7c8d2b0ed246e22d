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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from filelock import FileLock

import octavo
from octavo.models.digest import hash_file, remember, write_atomically
from octavo.models.hub_files import (
    INDEX,
    TOKENIZERS,
    choose_gguf,
    has_safetensors,
    safetensors_files,
    small_files,
)
from octavo.models.jsonfile import read_json
from octavo.models.spec import ModelError
from octavo.models.store import Report, cache_dir, locked

logger = logging.getLogger("octavo.models")

_INDEX_LIMIT = 1 << 26
_HTTP_LIMIT = 50_000_000_000
"""Larger files come only over the library's own transfer protocol, which cannot go on with a partial file."""
_TIMEOUT_SECONDS = 15.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubName:
    """A model of the Hub, as it was named."""

    repo: str
    """ORG/NAME."""
    revision: str | None = None
    file: str | None = None
    """A GGUF file, or a part of its name."""

    @property
    def spelt(self) -> str:
        """Without the file."""
        return f"hf:{self.repo}" + (f"@{self.revision}" if self.revision else "")

    def __str__(self) -> str:
        return self.spelt + (f":{self.file}" if self.file else "")


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


def hub_cache() -> Path:
    """The directory that the library keeps repositories in."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def repo_folder(repo: str) -> Path:
    return hub_cache() / ("models--" + repo.replace("/", "--"))


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
    with _told_in_one_sentence(name):
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
    with _told_in_one_sentence(name):
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
                    self._fetch_small(files[name])
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
        self._what = f"Downloading {self._name.repo}, {_megabytes(self._total)}"
        for file in missing:
            self._advance(0)
            if file.sha256 is None or file.size > _HTTP_LIMIT:
                self._fetch_small(file)
            else:
                self._fetch_large(file, file.sha256)
        if missing:
            self._advance(self._total)

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
        self._done += count
        self._report(self._what, min(self._done / self._total, 1.0) if self._total else 1.0)

    def _fetch_small(self, file: HubFile) -> None:
        from huggingface_hub import hf_hub_download

        hf_hub_download(
            self._name.repo,
            file.path,
            revision=self._listing.commit,
            library_name="octavo",
            library_version=octavo.__version__,
            tqdm_class=_counter(self._advance),
        )
        if not self._is_whole(file):
            raise ModelError(f"{file.path} of {self._name.repo} came with another size than the {file.size} announced")

    def _fetch_large(self, file: HubFile, sha256: str) -> None:
        """The library throws a partial file away; this one is kept and gone on with."""
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
        before = self._done
        self._fetch_small(file)
        self._done = before
        remember(self._folder / file.path, sha256, cache_dir())

    def _fetch_bytes(self, file: HubFile, partial: Path) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

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
            raise _no_space(self._name, f"{_megabytes(needed)} are still to come and {_megabytes(free)} are free")


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


def _megabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{max(count, 0) / 1e6:.1f} MB"


# --- refusals ------------------------------------------------------------------------------------------


def _no_space(name: HubName, numbers: str) -> ModelError:
    return ModelError(
        f"no space left for {name.repo} on the disk that holds {hub_cache()}: {numbers}; free some "
        "(octavo models shows what is cached), or set HF_HUB_CACHE to a directory on another disk"
    )


@contextmanager
def _told_in_one_sentence(name: HubName) -> Iterator[None]:
    """Every way in which a download fails, as a ModelError."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    network_error: Any = HfHubHTTPError.__bases__[0]
    try:
        yield
    except ModelError:
        raise
    except (network_error, OSError, ValueError) as raised:
        error: Any = raised
        if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
            error = error.__cause__
        if isinstance(error, OfflineModeIsEnabled):
            refusal = ModelError(
                f"HF_HUB_OFFLINE is set, and {name} is not in the cache {hub_cache()}, or not wholly: unset it once, "
                f"or fetch it on a machine with a network (octavo pull {name}) and copy {repo_folder(name.repo)}"
            )
        elif isinstance(error, HfHubHTTPError):
            refusal = _http_error(name, error, constants.ENDPOINT)
        elif isinstance(error, network_error):
            refusal = ModelError(
                f"{name} could not be downloaded from {constants.ENDPOINT} ({str(error) or type(error).__name__}): "
                "check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT; what has come is kept, and the same "
                "command goes on"
            )
        elif isinstance(error, OSError):
            refusal = _storage_error(name, error)
        else:
            refusal = ModelError(
                f"{constants.ENDPOINT} gave an answer that is none of a Hub ({error}): check HF_ENDPOINT"
            )
        raise refusal from raised


def _http_error(name: HubName, error: Any, endpoint: str) -> ModelError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = error.response.status_code
    page = f"{endpoint}/{name.repo}"
    has_token = error.response.request.headers.get("authorization") is not None
    if isinstance(error, GatedRepoError):
        token = "that the token (HF_TOKEN) belongs to an account that has it" if has_token else "set HF_TOKEN"
        return ModelError(f"{name.repo} is gated: accept its terms at {page}, and {'see ' if has_token else ''}{token}")
    if isinstance(error, RevisionNotFoundError):
        return ModelError(f"{name.repo} has no revision {name.revision!r}; see {page}, or name it without @REVISION")
    if status == 401 and has_token and error.response.headers.get("X-Error-Message", "").startswith("Invalid cred"):
        return ModelError(f"{endpoint} does not accept the token in HF_TOKEN: set a valid one, or unset it")
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return ModelError(
            f"there is no model {name.repo} at {endpoint}, or it is private (and no such file here): check the "
            f"spelling, or set HF_TOKEN to a token that may read it"
        )
    if status in (401, 403):
        return ModelError(
            f"{endpoint} does not let this account read {name.repo} ({status}): check HF_TOKEN and {page}"
        )
    return ModelError(
        f"{endpoint} answered {status} for {name.repo}: try again in a moment; what has come is kept, and the same "
        "command goes on"
    )


def _storage_error(name: HubName, error: OSError) -> ModelError:
    if error.errno == errno.ENOSPC:
        return _no_space(name, "it became full during the download, and what has come is kept")
    if error.errno is None:
        return ModelError(f"{name} could not be downloaded: {str(error).splitlines()[0] if str(error) else error!r}")
    return ModelError(
        f"the cache {hub_cache()} cannot be written ({error.strerror}: {error.filename}): set HF_HUB_CACHE to a "
        "directory of your own"
    )
