"""Files that may be left out of a model's directory: absent is absent, and all else is told by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.models.checkpoint import open_checkpoint
from octavo.models.inspection import inspect
from octavo.models.spec import ModelError
from octavo.models.tokenizer import load_tokenizer
from tests.support.tiny import write_gguf, write_hf

OPTIONAL = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "other.jinja",
    "additional_chat_templates",
    "quantize_config.json",
)
NEEDED = ("config.json", "tokenizer.json", "model.safetensors")


def _nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def _cycle(path: Path) -> None:
    path.symlink_to(path.name)


KINDS: tuple[Callable[[Path], None], ...] = (_nowhere, _cycle, os.mkfifo, Path.mkdir)


def _open(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.sampling()
    checkpoint.close()
    load_tokenizer(folder)


WRONG = [
    (name, make)
    for name in OPTIONAL + NEEDED
    for make in KINDS
    if (name, make) != ("additional_chat_templates", Path.mkdir)  # which is a directory
]


@pytest.mark.parametrize(("name", "make"), WRONG)
def test_an_entry_that_is_no_file_is_refused_by_name(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    folder = write_hf(tmp_path / "m").path
    if (folder / name).exists():
        (folder / name).unlink()
    make(folder / name)
    with pytest.raises(ModelError) as caught:
        _open(folder)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_left_out_is_absent(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m").path
    for name in OPTIONAL:
        (folder / name).unlink(missing_ok=True)
    _open(folder)


@pytest.mark.parametrize("make", KINDS)
def test_a_template_beside_a_gguf_file_must_be_a_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = write_gguf(tmp_path / "m.gguf").path
    make(tmp_path / "m.jinja")
    with pytest.raises(ModelError, match=r"m\.jinja"):
        load_tokenizer(path)


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m").path
    blob = (folder / "generation_config.json").rename(tmp_path / "blob")
    (folder / "generation_config.json").symlink_to(blob)
    _open(folder)


@pytest.mark.parametrize("make", KINDS[:3])
def test_a_named_model_that_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "m.gguf"
    make(path)
    refusal = inspect(path).refusal
    assert refusal is not None and "m.gguf" in refusal
