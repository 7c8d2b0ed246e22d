"""Directories that the user may not read: one sentence, from every command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny import write_gguf, write_hf

_DROP = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
_LLM = "import sys; from octavo import LLM; LLM(sys.argv[1])"


def _prefix() -> list[str]:
    """What takes root's right to read everything away; empty for anybody else."""
    if os.geteuid() != 0:
        return []
    probe = [*_DROP, "true"]
    if shutil.which("setpriv") is None or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("root reads closed directories, and setpriv cannot take that right away here")
    return _DROP


def _run(*command: str, cache: Path | None = None) -> tuple[int, str]:
    env = {**os.environ, **({"OCTAVO_CACHE": str(cache)} if cache is not None else {})}
    done = subprocess.run([*_prefix(), sys.executable, *command], capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stdout + done.stderr


def _octavo(*arguments: str, cache: Path | None = None) -> tuple[int, str]:
    return _run("-m", "octavo.cli.main", *arguments, cache=cache)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A model directory that nobody may enter."""
    folder = write_hf(tmp_path / "m").path
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)


@pytest.mark.parametrize(
    "command",
    [["doctor"], ["doctor", "--json"], ["pull"], ["serve", "--port", "0"], ["run", "--prompt", "a"]],
)
def test_a_closed_model_directory_is_one_sentence(closed: Path, command: list[str]) -> None:
    status, said = _octavo(command[0], str(closed), *command[1:])
    assert status != 0
    _check(said, closed)


def test_a_closed_model_directory_is_not_converted(closed: Path, tmp_path: Path) -> None:
    status, said = _octavo("convert", str(closed), str(tmp_path / "new.gguf"))
    assert status == 2
    _check(said, closed)


@pytest.mark.parametrize("command", [["doctor"], ["serve", "--port", "0"]])
def test_a_file_in_a_closed_directory_is_one_sentence(tmp_path: Path, command: list[str]) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    path = write_gguf(folder / "m.gguf").path
    folder.chmod(0)
    try:
        status, said = _octavo(command[0], str(path), *command[1:])
    finally:
        folder.chmod(0o700)
    assert status != 0
    _check(said, path)


def test_llm_refuses_a_closed_model_directory_with_one_sentence(closed: Path) -> None:
    status, said = _run("-c", _LLM, str(closed))
    assert status == 1
    assert said.splitlines()[-1].startswith("octavo.models.spec.ModelError: ")
    assert "cannot be read: Permission denied" in said.splitlines()[-1]


@pytest.mark.parametrize("command", [["models"], ["models", "--json"], ["models", "rm", "--packed", "--yes"]])
def test_a_closed_cache_is_one_sentence(tmp_path: Path, command: list[str]) -> None:
    cache = tmp_path / "cache"
    (cache / "packed").mkdir(parents=True)
    cache.chmod(0)
    try:
        status, said = _octavo(*command, cache=cache)
    finally:
        cache.chmod(0o700)
    assert status == 2
    _check(said, cache)
    assert "OCTAVO_CACHE" in said


def _check(said: str, path: Path) -> None:
    assert "Traceback" not in said and "Errno" not in said, said
    assert str(path) in said and "Permission denied" in said, said
