"""The tensors that together make one matrix, with checks that name what is wrong; and fields of 32-bit words.

Owns nothing; off switch: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.models.quantised.matrix import Ints
from octavo.models.safetensors import StoredTensor
from octavo.models.spec import ModelError
from octavo.ops.numeric import F32, expand

FLOATS = ("F32", "F16", "BF16")

_INTS: dict[str, Any] = {"I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1"}


@dataclass(frozen=True)
class Parts:
    """What a file holds of one linear module."""

    where: str
    module: str
    found: Mapping[str, StoredTensor]
    """By the last part of the name: "qweight", "scales"."""

    def error(self, suffix: str, what: str) -> ModelError:
        return ModelError(f"{self.where}: tensor {self.module}.{suffix} {what}")

    def get(self, suffix: str, types: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> StoredTensor | None:
        """A part that may be absent, of one of the types and shapes (none given: any matrix)."""
        tensor = self.found.get(suffix)
        if tensor is None:
            return None
        if tensor.type not in types:
            raise self.error(suffix, f"has type {tensor.type}; it must be {' or '.join(types)}")
        if shapes and tensor.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(suffix, f"has shape {list(tensor.shape)}; it must be {wanted}")
        if not shapes and (len(tensor.shape) != 2 or 0 in tensor.shape):
            raise self.error(suffix, f"has shape {list(tensor.shape)}; it must be a matrix")
        return tensor

    def need(self, suffix: str, types: Sequence[str], shapes: Sequence[tuple[int, ...]] = ()) -> StoredTensor:
        tensor = self.get(suffix, types, shapes)
        if tensor is None:
            beside = f"{self.module}.{next(iter(self.found))}"
            raise ModelError(f"{self.where} lacks tensor {self.module}.{suffix}, without which {beside} says nothing")
        return tensor


def modules(tensors: Mapping[str, StoredTensor], suffixes: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each module that has a tensor of the first of `suffixes`, with all that it has of them."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        module, _, suffix = name.rpartition(".")
        if suffix in suffixes:
            found.setdefault(module, {})[suffix] = tensor
    return ((module, parts) for module, parts in found.items() if suffixes[0] in parts)


def integers(tensor: StoredTensor) -> Ints:
    """A view of the file."""
    values: Ints = np.frombuffer(tensor.data, np.uint8).view(_INTS[tensor.type])
    return values.reshape(tensor.shape)


def floats(tensor: StoredTensor) -> F32:
    return expand(tensor.type, tensor.shape, tensor.data)


def fields(words: Ints, bits: int) -> Ints:
    """The fields of each 32-bit word, lowest first, along a new last axis; 4 or 8 bits."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    if bits == 8:
        return raw
    assert bits == 4
    pair = np.stack((raw & np.uint8(15), raw >> np.uint8(4)), axis=-1)
    return pair.reshape(*words.shape, 8)
