"""FP8 weights (E4M3, without infinities) times a scale a block, a row or a matrix: expanded.

A matrix [N, K] of one byte a value; its scale is weight_scale_inv [ceil(N / r), ceil(K / c)] for blocks of r x c (it
multiplies, whatever its name says), or weight_scale: one number, or one a row. Where every scale is a power of two the
products are bfloat16 numbers and stay so; else they become float32. Owns nothing; off switch: none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.models.config_reader import ConfigReader
from octavo.models.quantised.matrix import Bytes, Encode, Fit, QuantisedTensor
from octavo.models.quantised.parts import FLOATS, Parts, floats
from octavo.models.safetensors import StoredTensor
from octavo.ops.numeric import F32

Block = tuple[int, int]


def _e4m3() -> F32:
    """The value of every byte: sign, four bits of exponent (bias 7), three of mantissa; 0x7f and 0xff are NaN."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[[0x7F, 0xFF]] = np.nan
    return np.where(byte >> 7, -magnitude, magnitude).astype(np.float32)


_VALUES = _e4m3()


@dataclass(frozen=True)
class Fp8:
    """The settings of a directory."""

    block: Block | None

    label = "FP8"
    suffixes = ("weight", "weight_scale_inv", "weight_scale", "input_scale", "activation_scale")

    def tensor(self, parts: Parts) -> tuple[QuantisedTensor, Fit] | None:
        """The module's matrix; None where it is a float one."""
        if len(parts.found) == 1 and parts.found["weight"].type in (*FLOATS, "F64"):
            return None
        weight = parts.need("weight", ("F8_E4M3",))
        rows, columns = weight.shape
        if self.block is not None and "weight_scale" not in parts.found:
            grid = (-(-rows // self.block[0]), -(-columns // self.block[1]))
            scale = parts.need("weight_scale_inv", FLOATS, [grid])
            return expanded(parts, weight, floats(scale), self.block)
        suffix = "weight_scale" if "weight_scale" in parts.found else "weight_scale_inv"
        scale = parts.need(suffix, FLOATS, [(), (1,), (1, 1), (rows,), (rows, 1)])
        return expanded(
            parts, weight, floats(scale).reshape(-1, 1), (1 if scale.shape[:1] == (rows,) else rows, columns)
        )


def expanded(parts: Parts, weight: StoredTensor, scale: F32, block: Block) -> tuple[QuantisedTensor, Fit]:
    """E4M3 values times the scale [block rows, block columns] of their block."""
    rows, columns = weight.shape
    raw = np.frombuffer(weight.data, np.uint8).reshape(rows, columns)
    bits = scale.view(np.uint32)
    exponent = bits >> np.uint32(23) & np.uint32(255)
    exact = not (bits & np.uint32(0x7FFFFF)).any() and bool(((exponent > 30) & (exponent < 225)).all())
    kind = "BF16" if exact else "F32"
    across = np.arange(columns) // block[1]

    def encode(begin: int, end: int) -> Bytes:
        down = np.arange(begin, end) // block[0]
        values = _VALUES[raw[begin:end]] * scale[down][:, across]
        if kind == "F32":
            return values.view(np.uint8).reshape(end - begin, -1)
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8).reshape(end - begin, -1)

    def prepare() -> Encode:
        return encode

    tensor = QuantisedTensor(f"{parts.module}.weight", kind, (rows, columns), prepare)
    return tensor, Fit(kind, "there is no product with 8-bit floats")


def read(config: ConfigReader) -> Fp8:
    form = config.string("fmt") or "e4m3"
    if form.lower() not in ("e4m3", "float8_e4m3fn"):
        raise config.error(f"FP8 with fmt {form!r} is not supported; supported: e4m3")
    return Fp8(block_size(config, "weight_block_size"))


def block_size(config: ConfigReader, key: str) -> Block | None:
    sizes = config.items(key, 2, int, "whole numbers")
    if sizes is None:
        return None
    if min(sizes) < 1:
        raise config.error(f"{key} is {list(sizes)}; its sizes must be at least 1")
    return sizes[0], sizes[1]
