"""Split GGUF models: any part names the model, and a part that is missing, doubled or of another model is named."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from octavo.models.checkpoint import open_checkpoint
from octavo.models.gguf_parts import gguf_of
from octavo.models.spec import ModelError
from octavo.models.tokenizer import load_tokenizer
from octavo.ops.numeric import expand
from tests.support.tiny import Tiny, write_gguf

SMALL = Tiny(hidden=32, heads=2, kv_heads=1, layers=1, intermediate=32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "split"
    folder.mkdir()
    write_gguf(folder / "m.gguf", SMALL, "Q8_0", tensors_a_part=5)
    return sorted(folder.iterdir())


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_any_part_or_the_directory_names_the_model(tmp_path: Path, parts: list[Path]) -> None:
    assert [path.name for path in parts] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    whole = write_gguf(tmp_path / "whole.gguf", SMALL, "Q8_0")
    for path in (*parts, parts[0].parent):
        checkpoint = open_checkpoint(path)
        assert checkpoint.name == "m" and checkpoint.spec == whole.spec
        tensors = {tensor.name: tensor for tensor in checkpoint.tensors()}
        assert list(tensors) == [tensor.name for tensor in open_checkpoint(whole.path).tensors()]
        for name, values in whole.weights.items():
            tensor = tensors[name]
            np.testing.assert_array_equal(expand(tensor.source, tensor.shape, tensor.data), values)
        assert checkpoint.total_bytes == sum(len(tensor.data) for tensor in tensors.values())
        assert load_tokenizer(path).encode("in") == load_tokenizer(whole.path).encode("in")
        checkpoint.close()


def test_weights_id_follows_every_part(parts: list[Path]) -> None:
    first = open_checkpoint(parts[1]).weights_id()
    assert open_checkpoint(parts[0]).weights_id() == first
    content = bytearray(parts[2].read_bytes())
    content[-40] ^= 1
    parts[2].write_bytes(content)
    assert open_checkpoint(parts[0]).weights_id() != first


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_missing_part_is_named(parts: list[Path], index: int) -> None:
    parts[index].unlink()
    left = parts[0] if index else parts[1]
    message = refusal(left)
    assert parts[index].name in message and "1 of the 3" in message


def test_a_truncated_part_is_named(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-100])
    message = refusal(parts[0])
    assert parts[1].name in message and "truncated" in message


def test_a_part_in_anothers_place_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    parts[1].symlink_to(parts[0])  # a circle: the second part is the first again
    message = refusal(parts[0])
    assert parts[1].name in message and "split.no" in message


def test_a_link_to_itself_is_a_missing_part(parts: list[Path]) -> None:
    parts[1].unlink()
    parts[1].symlink_to(parts[1])
    assert parts[1].name in refusal(parts[0])


def test_a_part_of_another_model_is_named(tmp_path: Path, parts: list[Path]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_gguf(other / "m.gguf", Tiny(hidden=32, heads=2, kv_heads=1, layers=2, intermediate=32), tensors_a_part=8)
    shutil.copy(other / parts[1].name, parts[1])
    message = refusal(parts[0])
    assert parts[1].name in message and "another model" in message


def edit(path: Path, key: bytes, kind: str, value: int) -> None:
    content = path.read_bytes()
    at = content.index(key) + len(key) + 4
    path.write_bytes(content[:at] + struct.pack(kind, value) + content[at + struct.calcsize(kind) :])


def test_a_tensor_in_two_parts_is_named(parts: list[Path]) -> None:
    first, second = parts[0].read_bytes(), parts[1].read_bytes()
    assert b"blk.0.attn_q.weight" in first and b"blk.0.ffn_up.weight" in second
    parts[1].write_bytes(second.replace(b"blk.0.ffn_up.weight", b"blk.0.attn_q.weight"))
    message = refusal(parts[0])
    assert parts[1].name in message and "blk.0.attn_q.weight" in message


def test_a_wrong_number_of_tensors_is_told(parts: list[Path]) -> None:
    for part in parts:
        edit(part, b"split.tensors.count", "<i", 17)
    assert "17" in refusal(parts[0])


def test_counts_that_contradict_the_names_are_told(parts: list[Path]) -> None:
    edit(parts[0], b"split.count", "<H", 60_000)
    message = refusal(parts[0])
    assert parts[0].name in message and "of-60000" in message
    assert "split.count is 60000" in refusal(parts[1])


def test_a_renamed_part_is_told_its_name(parts: list[Path]) -> None:
    renamed = parts[1].rename(parts[1].with_name("x.gguf"))
    message = refusal(renamed)
    assert "x.gguf" in message and "NAME-00002-of-00003.gguf" in message


def test_of_two_models_in_a_directory_one_must_be_named(parts: list[Path]) -> None:
    write_gguf(parts[0].parent / "n.gguf", SMALL)
    message = refusal(parts[0].parent)
    assert "m.gguf" in message and "n.gguf" in message
    assert open_checkpoint(parts[0]).name == "m" and open_checkpoint(parts[0].parent / "n.gguf").name == "n"


def test_a_directory_with_safetensors_is_no_gguf_model(parts: list[Path]) -> None:
    folder = parts[0].parent
    assert gguf_of(folder) == parts[0]
    (folder / "model.safetensors").write_bytes(b"")
    assert gguf_of(folder) is None
