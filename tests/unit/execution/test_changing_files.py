"""A model's files that change while they are packed: refused, and nothing is kept of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig
from octavo.execution.factory import build_executor
from octavo.models.spec import ModelError
from tests.support.tiny import Tiny, write_gguf


def test_files_that_change_while_they_are_packed_are_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    path, other = tmp_path / "m.gguf", tmp_path / "other.gguf"
    write_gguf(path, Tiny())
    write_gguf(other, Tiny(seed=1))
    config = EngineConfig(model=ModelConfig(path=str(path)), kv=KVConfig(size_tokens=1024))

    def progress(what: str, fraction: float | None) -> None:
        if what == "packing weights" and other.exists():
            os.replace(other, path)

    with pytest.raises(ModelError, match="changed while they were loaded"):
        build_executor(config, progress)
    assert not other.exists() and not list((tmp_path / "cache" / "packed").glob("*.arena"))
    build_executor(config, progress).close()
    assert len(list((tmp_path / "cache" / "packed").glob("*.arena"))) == 1
