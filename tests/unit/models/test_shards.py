"""Sharded safetensors: what an index may say, and every way in which it or a shard can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.models.checkpoint import open_checkpoint
from octavo.models.spec import ModelError
from tests.support.tiny import Tiny, write_hf, write_safetensors

SMALL = Tiny(hidden=32, heads=2, kv_heads=1, layers=1, intermediate=32)
INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return write_hf(tmp_path / "m", SMALL, shards=3).path


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / INDEX).read_text())
    change(content)
    (folder / INDEX).write_text(json.dumps(content))


@pytest.mark.parametrize(
    "name", ["../m.safetensors", "/etc/passwd", "a/b.safetensors", "..", "model.bin", "", ".\u0000.safetensors"]
)
def test_an_index_names_files_of_its_own_directory(folder: Path, name: str) -> None:
    edit(folder, lambda index: index["weight_map"].update({"model.norm.weight": name}))
    assert INDEX in refusal(folder) or "lacks" in refusal(folder)


def test_a_tensor_that_its_shard_lacks_is_named(folder: Path) -> None:
    edit(folder, lambda index: index["weight_map"].update({"model.extra.weight": SECOND}))
    message = refusal(folder)
    assert "model.extra.weight" in message and SECOND in message


def test_a_tensor_in_two_shards_is_named(folder: Path) -> None:
    shutil.copy(folder / "model-00001-of-00003.safetensors", folder / SECOND)
    message = refusal(folder)
    assert "another file too" in message and SECOND in message


def test_a_shard_of_another_model_is_told_by_its_shapes(folder: Path, tmp_path: Path) -> None:
    other = write_hf(tmp_path / "n", Tiny(hidden=64, heads=2, kv_heads=1, layers=1, intermediate=32), shards=3).path
    shutil.copy(other / SECOND, folder / SECOND)
    assert "the configuration says" in refusal(folder)


def test_an_empty_index_lacks_every_tensor(folder: Path) -> None:
    edit(folder, lambda index: index.update(weight_map={}))
    assert "lacks" in refusal(folder)


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{}", "[" * 100_000])
def test_a_damaged_index_is_named(folder: Path, content: str) -> None:
    (folder / INDEX).write_text(content)
    assert INDEX in refusal(folder)


def test_a_link_to_itself_is_a_missing_shard(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).symlink_to(folder / SECOND)
    assert SECOND in refusal(folder)


def test_linked_shards_are_read_and_other_files_are_not(folder: Path, tmp_path: Path) -> None:
    expected = {tensor.name: bytes(tensor.data) for tensor in open_checkpoint(folder).tensors()}
    (folder / SECOND).rename(tmp_path / "blob")
    (folder / SECOND).symlink_to(tmp_path / "blob")
    write_safetensors(folder / "consolidated.safetensors", {"model.norm.weight": np.zeros(3)})
    assert {tensor.name: bytes(tensor.data) for tensor in open_checkpoint(folder).tensors()} == expected
