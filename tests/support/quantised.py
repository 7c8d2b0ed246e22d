"""Quantised safetensors directories, packed from the formats' descriptions alone: GPTQ, AWQ, compressed-tensors, FP8.

Each packer takes a matrix [outputs, inputs], rounds it, and gives the tensors of one module and the values that they
stand for. `write_quantised` applies one to every matrix of a tiny model's layers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from octavo.models.safetensors import read_safetensors
from octavo.ops.numeric import expand
from tests.support.tiny import Tiny, TinyModel, file_names, write_hf

Stored = dict[str, np.ndarray]
Packer = Callable[[np.ndarray, np.random.Generator], tuple[Stored, np.ndarray]]

_NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int8": "I8",
    "uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def write_arrays(path: Path, tensors: Stored) -> None:
    """A safetensors file of arrays as they are."""
    header: dict[str, Any] = {}
    blobs, at = [], 0
    for name, values in tensors.items():
        blob = values.tobytes()
        kind = _NAMES[values.dtype.name]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def words(values: np.ndarray, bits: int) -> np.ndarray:
    """Fields of `bits` bits along the last axis as int32, the first one lowest; the end is filled with zeros."""
    per = 32 // bits
    padded = np.zeros((*values.shape[:-1], -(-values.shape[-1] // per) * per), np.uint64)
    padded[..., : values.shape[-1]] = values
    parts = padded.reshape(*values.shape[:-1], -1, per)
    total = np.zeros(parts.shape[:-1], np.uint64)
    for i in range(per):
        total |= parts[..., i] << np.uint64(bits * i)
    return total.astype(np.uint32).view(np.int32)


def rounded(
    values: np.ndarray, groups: np.ndarray, bits: int, symmetric: bool, scale_type: Any = np.float16
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Integers 0 to 2^bits - 1, scales and zero points [rows, groups], and d (q - z) rounded once to float32."""
    count, top = int(groups.max()) + 1, (1 << bits) - 1
    d = np.empty((len(values), count), np.float32)
    z = np.full((len(values), count), 1 << (bits - 1))
    for g in range(count):
        part = values[:, groups == g]
        if symmetric:
            d[:, g] = np.abs(part).max(axis=1) / (top // 2)
        else:
            low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            d[:, g] = (high - low) / top
            z[:, g] = np.clip(np.round(-low / d[:, g]), 0, top)
    d = d.astype(scale_type)
    wide = d.astype(np.float64)[:, groups]
    q = np.clip(np.round(values / wide) + z[:, groups], 0, top).astype(np.int64)
    return q, d, z, (wide * (q - z[:, groups])).astype(np.float32)


def gptq(
    bits: int = 4, group: int = 32, symmetric: bool = False, act_order: bool = False, v2: bool = False,
    scale_type: Any = np.float16, with_index: bool = True,
) -> Packer:  # fmt: skip
    def pack(values: np.ndarray, rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
        columns = values.shape[1]
        groups = np.arange(columns) // (columns if group == -1 else group)
        if act_order:
            groups = rng.permutation(groups)
        q, d, z, exact = rounded(values, groups, bits, symmetric, scale_type)
        zeros = z if v2 else (z - 1) & ((1 << bits) - 1)
        stored = {"qweight": words(q, bits).T, "qzeros": words(zeros.T, bits), "scales": d.T}
        if with_index:
            stored["g_idx"] = groups.astype(np.int32)
        return {name: np.ascontiguousarray(part) for name, part in stored.items()}, exact

    return pack


def awq(group: int = 32, scale_type: Any = np.float16) -> Packer:
    def interleaved(values: np.ndarray) -> np.ndarray:
        return words(values.reshape(len(values), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]], 4)[:, :, 0]

    def pack(values: np.ndarray, rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
        columns = values.shape[1]
        groups = np.arange(columns) // (columns if group == -1 else group)
        q, d, z, exact = rounded(values, groups, 4, False, scale_type)
        stored = {"qweight": interleaved(q.T), "qzeros": interleaved(z.T), "scales": d.T}
        return {name: np.ascontiguousarray(part) for name, part in stored.items()}, exact

    return pack


def packed_ints(
    bits: int = 4, group: int | None = 32, symmetric: bool = True, act_order: bool = False,
    scale_type: Any = ml_dtypes.bfloat16, plain_zeros: bool = False,
) -> Packer:  # fmt: skip
    """compressed-tensors' pack-quantized; group None: a scale a row."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
        columns = values.shape[1]
        groups = np.arange(columns) // (group or columns)
        if act_order:
            groups = rng.permutation(groups)
        q, d, z, exact = rounded(values, groups, bits, symmetric, scale_type)
        stored = {"weight_packed": words(q, bits), "weight_scale": d, "weight_shape": np.array(values.shape)}
        if not symmetric:
            signed = (z - (1 << (bits - 1))).astype(np.int8)
            stored["weight_zero_point"] = signed if plain_zeros else np.ascontiguousarray(words(z.T, bits).T)
        if act_order:
            stored["weight_g_idx"] = groups.astype(np.int32)
        return stored, exact

    return pack


def plain_ints(per_row: bool = True, symmetric: bool = True) -> Packer:
    """compressed-tensors' int-quantized and naive-quantized."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
        flat = values if per_row else values.reshape(1, -1)
        q, d, z, exact = rounded(flat, np.zeros(flat.shape[1], int), 8, symmetric, ml_dtypes.bfloat16)
        stored = {"weight": (q - 128).astype(np.int8).reshape(values.shape), "weight_scale": d}
        if not per_row:
            stored["weight_scale"] = d.reshape(1)
        if not symmetric:
            stored["weight_zero_point"] = (z - 128).astype(np.int8).reshape(stored["weight_scale"].shape)
        return stored, exact.reshape(values.shape)

    return pack


def fp8(
    block: tuple[int, int] | None = (128, 128), suffix: str = "weight_scale_inv", power_of_two: bool = False,
    scale_type: Any = np.float32, input_scale: bool = False,
) -> Packer:  # fmt: skip
    """A scale a block; block None: one for the matrix; a block of (1, 0): one a row."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> tuple[Stored, np.ndarray]:
        rows, columns = values.shape
        down, across = (rows, columns) if block is None else (block[0], block[1] or columns)
        grid = np.empty((-(-rows // down), -(-columns // across)), np.float32)
        for i, j in np.ndindex(grid.shape):
            grid[i, j] = np.abs(values[i * down : (i + 1) * down, j * across : (j + 1) * across]).max() / 448
        if power_of_two:
            grid = np.exp2(np.ceil(np.log2(grid)))
        grid = grid.astype(scale_type)
        wide = grid.astype(np.float64).repeat(down, 0)[:rows].repeat(across, 1)[:, :columns]
        q = (values / wide).astype(ml_dtypes.float8_e4m3fn)
        stored = {"weight": q, suffix: grid.reshape(()) if block is None else grid}
        if input_scale:
            stored["input_scale"] = np.ones(1, np.float32)
        return stored, (q.astype(np.float64) * wide).astype(np.float32)

    return pack


def compressed_config(form: str, **weights: Any) -> dict[str, Any]:
    """quantization_config of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def quantise(folder: Path, packed: Path, floats: Path, packer: Packer, config: dict[str, Any]) -> None:
    """From a saved model two: its layers' matrices packed, and the floats that those stand for."""
    rng = np.random.default_rng(0)
    stored: Stored = {}
    weights: Stored = {}
    for tensor in read_safetensors(folder / "model.safetensors").values():
        values = expand(tensor.type, tensor.shape, tensor.data)
        small = values.ndim != 2 or min(values.shape) < 32
        if small or "layers." not in tensor.name or tensor.name.endswith("mlp.gate.weight"):
            stored[tensor.name] = values
        else:
            parts, values = packer(values, rng)
            stored |= {f"{tensor.name.removesuffix('weight')}{suffix}": part for suffix, part in parts.items()}
        weights[tensor.name] = values
    for target, tensors, more in ((packed, stored, {"quantization_config": config}), (floats, weights, {})):
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
        write_arrays(target / "model.safetensors", tensors)
        described = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**described, **more}))


def write_quantised(
    folder: Path, packer: Packer, config: dict[str, Any], tiny: Tiny | None = None, keep: str = ""
) -> TinyModel:
    """A tiny model whose layers' matrices are packed, except those whose file name holds `keep`."""
    tiny = tiny or Tiny()
    model = write_hf(folder, tiny)
    rng = np.random.default_rng(tiny.seed)
    stored: Stored = {}
    weights = {}
    for canonical, name in file_names(tiny.spec(), "hf").items():
        values = model.weights[canonical]
        if values.ndim == 2 and canonical.startswith("layers.") and not (keep and keep in name):
            parts, values = packer(values, rng)
            stored |= {f"{name.removesuffix('weight')}{suffix}": part for suffix, part in parts.items()}
        else:
            stored[name] = values
        weights[canonical] = values
    write_arrays(folder / "model.safetensors", stored)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "quantization_config": config}))
    return TinyModel(folder, model.spec, weights)
