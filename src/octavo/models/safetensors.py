"""Reads safetensors files: one, or shards named by an index. Tensor data are views of the mapped files.

Owns the mappings from `open_safetensors` until the last view is gone. Headers are not trusted: sizes are bounded
before anything is parsed, and every tensor must lie within its file with as many bytes as its shape says.
Off switch: none.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from octavo.models.files import listing, present
from octavo.models.jsonfile import read_json
from octavo.models.spec import ModelError

_HEADER_LIMIT = 1 << 24
_INDEX_LIMIT = 1 << 24
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)


def open_safetensors(folder: Path) -> tuple[dict[str, StoredTensor], list[Path]]:
    """All tensors of a model directory in the order of its files, and those files."""
    single = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if present(single):
        return read_safetensors(single), [single]
    if present(index):
        return _read_shards(folder, index)
    alone = listing(folder, "*.safetensors")
    if len(alone) == 1 and present(alone[0]):
        return read_safetensors(alone[0]), alone
    if listing(folder, "*.bin") or listing(folder, "*.pt"):
        raise ModelError(f"{folder} holds pickled weights, which are never loaded; convert them to safetensors first")
    raise ModelError(f"{folder} holds neither model.safetensors nor model.safetensors.index.json")


def _read_shards(folder: Path, index: Path) -> tuple[dict[str, StoredTensor], list[Path]]:
    weight_map = read_json(index, _Index, _INDEX_LIMIT).weight_map
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index} names the file {name!r}, which is no safetensors file of its own directory")
    missing = [name for name in names if not present(folder / name)]
    if missing:
        raise ModelError(
            f"{folder} lacks {', '.join(missing[:3])}, {len(missing)} of the {len(names)} files in {index.name}"
        )
    tensors: dict[str, StoredTensor] = {}
    for name in names:
        for tensor in read_safetensors(folder / name).values():
            if tensor.name in tensors:
                raise ModelError(f"{folder / name}: tensor {tensor.name} is stored in another file too")
            tensors[tensor.name] = tensor
    for tensor_name, name in weight_map.items():
        if tensor_name not in tensors:
            raise ModelError(f"{folder / name} lacks tensor {tensor_name}, which {index.name} places there")
    return tensors, [folder / name for name in names]


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, in the order of their data."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise ModelError(f"{path} is truncated: it has only {size} bytes")
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    length = int.from_bytes(view[:8], "little")
    if length > _HEADER_LIMIT:
        raise ModelError(f"{path} is no safetensors file: its header would have {length} bytes, over {_HEADER_LIMIT}")
    if 8 + length > size:
        raise ModelError(f"{path} is truncated: its header ends at byte {8 + length}, the file has {size}")
    return _place(path, _entries(path, view[8 : 8 + length]), view[8 + length :])


def _entries(path: Path, raw: memoryview) -> dict[str, _Entry]:
    try:
        header: dict[str, msgspec.Raw] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        return {name: msgspec.json.decode(text, type=_Entry) for name, text in header.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} has a damaged header: {error}") from error
    except RecursionError as error:
        raise ModelError(f"{path} has a damaged header: it is nested too deeply") from error


def _place(path: Path, entries: dict[str, _Entry], data: memoryview) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    end: Any = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, stop = entry.data_offsets
        if begin != end or stop < begin:
            raise ModelError(f"{path}: tensor {name} lies at bytes {begin} to {stop}, the one before it ends at {end}")
        nbytes = _ITEM_BYTES.get(entry.dtype)
        for dim in entry.shape:
            nbytes = None if nbytes is None else nbytes * dim
        if min(entry.shape, default=1) < 0 or (nbytes is not None and nbytes != stop - begin):
            raise ModelError(f"{path}: tensor {name}, {entry.dtype} {entry.shape}, has {stop - begin} bytes")
        end = stop
        tensors[name] = StoredTensor(name, entry.dtype, tuple(entry.shape), data[begin:stop])
    if end != len(data):
        verb = "is truncated" if end > len(data) else "has bytes that no tensor owns"
        raise ModelError(f"{path} {verb}: its tensors take {end} bytes, the file has {len(data)} for them")
    return tensors
