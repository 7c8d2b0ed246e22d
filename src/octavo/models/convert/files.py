"""The two containers, header first: GGUF and safetensors. Tensors are then written at their places in any order.

A writer owns its file from `open` until `close`, which flushes it to the disk. Off switch: none.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from octavo.models.convert.plan import Target

GGUF_NUMBERS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30,
}  # fmt: skip
_ALIGNMENT = 32
_ARRAYS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}
_BOOL, _STRING, _ARRAY = 7, 8, 9


class TensorFile:
    """A file with its header written; `places` are where tensors begin."""

    def __init__(self, path: Path, header: bytes, targets: Sequence[Target], alignment: int) -> None:
        self._file: BinaryIO = path.open("xb")
        self._file.write(header)
        at = -(-len(header) // alignment) * alignment
        self._places: dict[str, int] = {}
        for target in targets:
            self._places[target.name] = at
            at += -(-target.nbytes // alignment) * alignment
        self._file.truncate(at)

    def write(self, target: str, offset: int, data: Any) -> None:
        """Bytes from `offset` within a tensor on."""
        self._file.seek(self._places[target] + offset)
        self._file.write(data)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


def open_safetensors_file(path: Path, targets: Sequence[Target]) -> TensorFile:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for target in targets:
        offsets = [at, at + target.nbytes]
        header[target.name] = {"dtype": target.type, "shape": list(target.shape), "data_offsets": offsets}
        at = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return TensorFile(path, len(text).to_bytes(8, "little") + text, targets, 1)


def open_gguf_file(path: Path, metadata: Mapping[str, Any], targets: Sequence[Target]) -> TensorFile:
    """Metadata are strings, bools, integers, floats, lists of strings and NumPy arrays."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(targets), len(metadata))]
    parts += [_string(key) + _value(value) for key, value in metadata.items()]
    at = 0
    for target in targets:
        sizes = target.shape[::-1]
        parts.append(_string(target.name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
        parts.append(struct.pack("<IQ", GGUF_NUMBERS[target.type], at))
        at += -(-target.nbytes // _ALIGNMENT) * _ALIGNMENT
    return TensorFile(path, b"".join(parts), targets, _ALIGNMENT)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, int):
        if 0 <= value < 1 << 32:
            return struct.pack("<II", 4, value)
        return struct.pack("<IQ", 10, value) if value > 0 else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, np.ndarray):
        kind = _BOOL if value.dtype == bool else _ARRAYS[value.dtype.str[1:]]
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + value.tobytes()
    assert isinstance(value, list) and all(isinstance(item, str) for item in value), type(value)
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
