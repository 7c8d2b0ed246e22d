"""Reads GGUF files: metadata, the table of tensors, and tensor data as views of the mapped file.

Owns the file's mapping from `read_gguf` until the last view of it is gone. Nothing in the file is trusted: every
count and length is checked against the size of the file before any work is done for it, so a damaged or hostile
file costs a ModelError and no more memory than a small multiple of its own size. Off switch: none.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.models.spec import ModelError

SUPPORTED_TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
FLOAT_TYPES = ("F32", "F16", "BF16")

# Number -> (name, values a block, bytes a block), of every type the format defines.
_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

# Metadata value types: number -> NumPy type of a scalar (BOOL is read as a byte).
_SCALARS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9

_MAX_ENTRIES = 65_536
"""Metadata entries, and tensors, at most."""
_MAX_STRINGS = 1 << 22
"""Strings in all arrays of one file at most: each costs some sixty bytes of memory."""
_MAX_KEY = 65_535
_MAX_DIMS = 4
_MIN_KV_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class GgufTensor:
    """One row of the table of tensors, checked to lie within the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    """Outermost first, as everywhere in Octavo (the file stores the reverse)."""
    offset: int
    """Bytes from the start of the file."""
    nbytes: int
    part: int = 0
    """Which file of a split model."""


class GgufFile:
    """An opened file, or the parts of a split model under the first one's name.

    `metadata` holds Python scalars, strings, lists of strings and NumPy arrays.
    """

    def __init__(self, path: Path, size: int, view: memoryview) -> None:
        self.path = path
        self.size = size
        self.paths = [path]
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._views: list[memoryview] = [view]

    def append(self, other: GgufFile) -> None:
        """Takes the tensors of another part, which must have other names; its metadata are dropped."""
        assert not self.tensors.keys() & other.tensors.keys()
        for name, tensor in other.tensors.items():
            self.tensors[name] = replace(tensor, part=tensor.part + len(self.paths))
        self.paths += other.paths
        self._views += other._views
        self.size += other.size

    def in_order(self) -> list[GgufTensor]:
        """The tensors as they lie in the files."""
        return sorted(self.tensors.values(), key=lambda tensor: (tensor.part, tensor.offset))

    def data(self, name: str) -> memoryview:
        """The bytes of a tensor, a view of the file."""
        assert self._views, "the file was closed"
        tensor = self.tensors[name]
        return self._views[tensor.part][tensor.offset : tensor.offset + tensor.nbytes]

    def close(self) -> None:
        """Drops the mappings; they end when the last view given out is gone. Harmless when called twice."""
        self._views = []


def read_gguf(path: str | Path) -> GgufFile:
    """Maps and checks a file; ModelError names the file and what is wrong with it."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise ModelError(f"{path.name} is no GGUF file: it has only {size} bytes")
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    return _Parser(path, view).parse()


class _Parser:
    """A cursor over the header. Lives for one `read_gguf`."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.name = path.name
        self.view = view
        self.size = len(view)
        self.at = 0
        self.strings_left = _MAX_STRINGS
        self.file = GgufFile(path, self.size, view)

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.name}: {what}")

    def need(self, count: int) -> None:
        """Asserts that `count` more bytes exist."""
        if count > self.size - self.at:
            raise ModelError(
                f"{self.name} is truncated or damaged: its header needs at least {self.at + count} bytes, "
                f"the file has {self.size}"
            )

    def u32(self) -> int:
        self.need(4)
        (value,) = _U32.unpack_from(self.view, self.at)
        self.at += 4
        return int(value)

    def u64(self) -> int:
        self.need(8)
        (value,) = _U64.unpack_from(self.view, self.at)
        self.at += 8
        return int(value)

    def string(self, limit: int, what: str) -> str:
        length = self.u64()
        if length > limit:
            raise self.fail(f"{what} is {length} bytes long; the limit is {limit}")
        self.need(length)
        raw = bytes(self.view[self.at : self.at + length])
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def parse(self) -> GgufFile:
        if bytes(self.view[:4]) != b"GGUF":
            raise ModelError(f"{self.name} is no GGUF file: it does not begin with the letters GGUF")
        self.at = 4
        version = self.u32()
        if version not in (2, 3):
            if version & 0xFFFF == 0:
                raise self.fail("the file is big-endian; only little-endian GGUF files are read")
            raise self.fail(f"GGUF version {version} is not supported; versions 2 and 3 are")
        tensors, entries = self.u64(), self.u64()
        if entries > _MAX_ENTRIES or tensors > _MAX_ENTRIES:
            raise self.fail(
                f"the header counts {entries} metadata entries and {tensors} tensors; the limit is {_MAX_ENTRIES}"
            )
        self.need(entries * _MIN_KV_BYTES + tensors * _MIN_TENSOR_BYTES)
        for _ in range(entries):
            self.entry()
        self.table(tensors)
        return self.file

    def entry(self) -> None:
        key = self.string(_MAX_KEY, "a metadata key")
        if key in self.file.metadata:
            raise self.fail(f"metadata key {key!r} appears twice")
        kind = self.u32()
        if kind == _STRING:
            self.file.metadata[key] = self.string(self.size, f"the value of {key}")
        elif kind == _ARRAY:
            self.file.metadata[key] = self.array(key)
        else:
            self.file.metadata[key] = self.numbers(key, kind, 1)[0].item()
            if kind == _BOOL:
                self.file.metadata[key] = bool(self.file.metadata[key])

    def array(self, key: str) -> Any:
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self.strings(key, count)
        if kind == _ARRAY:
            raise self.fail(f"metadata key {key!r} holds an array of arrays, which no supported model uses")
        return self.numbers(key, kind, count)

    def numbers(self, key: str, kind: int, count: int) -> Any:
        if kind not in _SCALARS:
            raise self.fail(f"metadata key {key!r} has the unknown value type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        self.need(count * dtype.itemsize)
        if count == 0:
            return np.empty(0, dtype)
        values = np.frombuffer(self.view, dtype, count, self.at).copy()
        self.at += count * dtype.itemsize
        return values

    def strings(self, key: str, count: int) -> list[str]:
        """The hot loop: a vocabulary and its merges are some hundred thousand strings."""
        self.need(count * 8)
        if count > self.strings_left:
            raise self.fail(f"metadata key {key!r} holds {count} strings; the limit is {self.strings_left}")
        self.strings_left -= count
        view, at, size, length_at = self.view, self.at, self.size, _U64.unpack_from
        found = []
        for _ in range(count):
            if at + 8 > size:
                self.need(size - self.at + 1)
            (length,) = length_at(view, at)
            at += 8
            if length > size - at:
                self.at = at
                self.need(length)
            found.append(str(view[at : at + length], "utf-8", "replace"))
            at += length
        self.at = at
        return found

    def table(self, count: int) -> None:
        """The tensors' names, types, shapes and places; then the checks that need them all."""
        rows: list[GgufTensor] = []
        for _ in range(count):
            tensor = self.row()
            if tensor.name in self.file.tensors:
                raise self.fail(f"tensor {tensor.name} appears twice")
            self.file.tensors[tensor.name] = tensor
            rows.append(tensor)
        alignment = self.file.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.fail(f"general.alignment is {alignment}; it must be a power of two from 8 on")
        start = -(-self.at // alignment) * alignment
        end, previous = 0, ""
        for tensor in sorted(rows, key=lambda row: row.offset):
            if tensor.offset % alignment:
                raise self.fail(f"tensor {tensor.name} lies at offset {tensor.offset}, no multiple of {alignment}")
            if tensor.offset < end:
                raise self.fail(f"tensors {previous} and {tensor.name} overlap")
            end, previous = tensor.offset + tensor.nbytes, tensor.name
        if start + end > self.size:
            raise ModelError(
                f"{self.name} is truncated: it has {self.size} bytes and its tensors end at byte {start + end}; "
                "get the file again"
            )
        for tensor in rows:
            placed = GgufTensor(tensor.name, tensor.type, tensor.shape, start + tensor.offset, tensor.nbytes)
            self.file.tensors[tensor.name] = placed

    def row(self) -> GgufTensor:
        name = self.string(_MAX_KEY, "a tensor's name")
        dims = self.u32()
        if not 1 <= dims <= _MAX_DIMS:
            raise self.fail(f"tensor {name} has {dims} dimensions; 1 to {_MAX_DIMS} are possible")
        sizes = [self.u64() for _ in range(dims)]
        number, offset = self.u32(), self.u64()
        if number not in _TYPES:
            raise self.fail(
                f"tensor {name} has the unknown type number {number}; supported: {', '.join(SUPPORTED_TYPES)}"
            )
        kind, block, block_bytes = _TYPES[number]
        values = 1
        for size in sizes:
            values *= size
        if values < 1 or sizes[0] % block:
            rows = f": its rows must be multiples of {block}" if block > 1 else ""
            raise self.fail(f"tensor {name} of type {kind} cannot have the shape {sizes[::-1]}{rows}")
        return GgufTensor(name, kind, tuple(sizes[::-1]), offset, values // block * block_bytes)
