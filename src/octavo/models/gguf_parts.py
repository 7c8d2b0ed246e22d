"""A model in GGUF files: one, or the parts of a split one; and which file of a directory is the model.

A split model's parts are called NAME-00001-of-00003.gguf. Each says its number (split.no, from 0), how many there are
(split.count) and how many tensors all of them hold (split.tensors.count); the first holds the metadata. Any part names
the model. Owns the mappings until `close()`. Off switch: none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from octavo.models.files import is_directory, listing, present
from octavo.models.gguf import GgufFile, read_gguf
from octavo.models.spec import ModelError

_PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def gguf_of(path: Path) -> Path | None:
    """The GGUF file that a name stands for: the file itself, or the one model of a directory without safetensors."""
    if not is_directory(path):
        return path
    files = listing(path, "*.gguf")
    if not files or listing(path, "*.safetensors") or present(path / "model.safetensors.index.json"):
        return None
    models = dict.fromkeys(model_name(file) + file.suffix for file in files)
    if len(models) > 1:
        listed = ", ".join(list(models)[:4]) + (" and others" if len(models) > 4 else "")
        raise ModelError(f"{path} holds {len(models)} models: {listed}; name the file of one, such as {files[0]}")
    return files[0]


def model_name(file: Path) -> str:
    """A file's name without its number and suffix."""
    found = _PART_NAME.fullmatch(file.name)
    return found[1] if found else file.stem


def open_gguf(path: str | Path) -> GgufFile:
    """The model of which `path` is the file or a part, as one GgufFile; ModelError says which part is wrong."""
    path = Path(path)
    named = read_gguf(path)
    count = _number(named, "split.count", 1)
    if count <= 1:
        return named
    found = _PART_NAME.fullmatch(path.name)
    if found is None or int(found[3]) != count:
        raise ModelError(
            f"{path.name} is one of {count} parts of a split model, which are found by their names: "
            f"call it NAME-{_number(named, 'split.no', 0) + 1:05}-of-{count:05}.gguf, as it was"
        )
    paths = [path.with_name(f"{found[1]}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    missing = [part.name for part in paths if not present(part)]
    if missing:
        raise ModelError(
            f"{path.parent} lacks {', '.join(missing[:3])}, {len(missing)} of the {count} parts of a model"
        )
    total = _number(named, "split.tensors.count", 0)
    named.close()
    return _joined(paths, total)


def _joined(paths: list[Path], total: int) -> GgufFile:
    """All parts read and checked against one another, under the first one's name and metadata."""
    model = _part(paths, 0, total)
    for i in range(1, len(paths)):
        part = _part(paths, i, total)
        twice = next((name for name in part.tensors if name in model.tensors), None)
        if twice is not None:
            raise ModelError(f"{paths[i].name}: tensor {twice} is stored in another part too")
        model.append(part)
    if len(model.tensors) != total:
        raise ModelError(
            f"the parts of {paths[0].name} hold {len(model.tensors)} tensors, but split.tensors.count is {total}: "
            "a part is of another model; get them again"
        )
    for key in [key for key in model.metadata if key.startswith("split.")]:
        del model.metadata[key]
    return model


def _part(paths: list[Path], index: int, total: int) -> GgufFile:
    file = read_gguf(paths[index])
    wanted = {"split.no": index, "split.count": len(paths), "split.tensors.count": total}
    for key, value in wanted.items():
        has = _number(file, key, -1)
        if has != value:
            raise ModelError(
                f"{paths[index].name}: {key} is {'missing' if has == -1 else has}, its name and the other parts say "
                f"{value}: the file is another part, or of another model"
            )
    return file


def _number(file: GgufFile, key: str, default: int) -> int:
    value: Any = file.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or (key in file.metadata and value < 0):
        raise ModelError(f"{file.path.name}: metadata key {key} is {str(value)[:40]!r}; it must be a whole number")
    return value
