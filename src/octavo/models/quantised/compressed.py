"""compressed-tensors: packed 4- and 8-bit integers, plain int8, and FP8.

For a module with K inputs and N outputs: weight_packed int32 [N, ceil(K b / 32)] with weight_shape [2] (values plus
2^(b-1), lowest field first), or weight int8 or FP8 [N, K]; weight_scale [N, groups], [N, 1], [1], or a grid of blocks;
weight_zero_point (packed along the outputs, or int8) where the scheme is not symmetric; weight_g_idx [K] for act-order.
w = scale (q - zero). Which of the configuration's groups a module belongs to shows in its tensors' types and shapes:
the patterns of `targets` are not evaluated. Owns nothing; off switch: none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.models.config_reader import ConfigReader
from octavo.models.quantised.fp8 import Block, block_size, expanded
from octavo.models.quantised.matrix import Encode, Fit, Ints, QuantisedTensor, Scales, encoder, exact_minima, fit
from octavo.models.quantised.parts import FLOATS, Parts, fields, floats, integers
from octavo.models.safetensors import StoredTensor
from octavo.ops.numeric import F32

FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")
_PLAIN = ("dense", "mixed-precision")
"""Formats that say nothing of a module by themselves."""


@dataclass(frozen=True)
class Scheme:
    """One of the configuration's groups."""

    bits: int
    floating: bool
    group_size: int | None
    """None: a scale a row or a matrix."""
    block: Block | None


@dataclass(frozen=True)
class Compressed:
    """The settings of a directory."""

    schemes: tuple[Scheme, ...]

    label = "compressed-tensors"
    suffixes = (
        "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
        "input_scale", "input_zero_point", "output_scale", "output_zero_point",
    )  # fmt: skip

    def tensor(self, parts: Parts) -> tuple[QuantisedTensor, Fit]:
        """A module of packed integers."""
        packed = parts.need("weight_packed", ("I32",))
        shape = integers(parts.need("weight_shape", ("I64", "I32"), [(2,)]))
        rows, columns = int(shape[0]), int(shape[1])
        bits = next((b for b in self._bits() if packed.shape == (rows, -(-columns * b // 32))), None)
        if bits is None or columns < 1:
            raise parts.error(
                "weight_packed",
                f"has shape {list(packed.shape)}, weight_shape says {[rows, columns]}; no group of the configuration "
                f"({' or '.join(str(b) for b in self._bits())} bits) packs one into the other",
            )
        words, middle = integers(packed), 1 << (bits - 1)

        def q(begin: int, end: int) -> Ints:
            values = fields(words[begin:end], bits).reshape(end - begin, -1)[:, :columns]
            return (values ^ np.uint8(128)).view(np.int8) if bits == 8 else values

        return self._integers(parts, bits, (rows, columns), q, middle if bits == 4 else 0)

    def plain(self, parts: Parts) -> tuple[QuantisedTensor, Fit] | None:
        """A module whose weight is not packed; None where it is a float one."""
        weight = parts.found["weight"]
        if weight.type in FLOATS:
            if "weight_scale" in parts.found:
                raise parts.error(
                    "weight", f"is {weight.type} beside a weight_scale: it was not compressed; save it compressed"
                )
            return None
        weight = parts.need("weight", ("I8", "F8_E4M3"))
        if weight.type == "I8":
            values = integers(weight)
            return self._integers(parts, 8, (weight.shape[0], weight.shape[1]), lambda b, e: values[b:e], 0)
        return self._floating(parts, weight)

    def _bits(self) -> list[int]:
        return sorted({scheme.bits for scheme in self.schemes if not scheme.floating})

    def _integers(
        self, parts: Parts, bits: int, shape: tuple[int, int], q: Callable[[int, int], Ints], middle: int
    ) -> tuple[QuantisedTensor, Fit]:
        """`q` gives values plus `middle`, and so zero points are plus `middle` too."""
        columns = shape[1]
        scale, group = self._scale(parts, shape)
        order = self._order(parts, columns, group)
        groups = scale.shape[1] if len(scale.shape) == 2 else 1
        zero = parts.get("weight_zero_point", ("I8", "I32", "I64"), _zero_shapes(shape[0], groups, bits))

        def zeros() -> F32 | None:
            if zero is None:
                return np.full((shape[0], groups), middle, np.float32) if middle else None
            if zero.type == "I32" and zero.shape == (-(-shape[0] * bits // 32), groups):
                stored = fields(integers(zero).T, bits).reshape(zero.shape[1], -1)[:, : shape[0]].T
                return np.ascontiguousarray(stored).astype(np.float32) - np.float32(0 if middle else 128)
            plain = integers(zero).astype(np.float32).reshape(-1, groups) + np.float32(middle)
            return np.ascontiguousarray(np.broadcast_to(plain, (shape[0], groups)))

        def scales() -> F32:
            return np.ascontiguousarray(np.broadcast_to(floats(scale).reshape(-1, groups), (shape[0], groups)))

        z = zeros() if scale.type == "F32" or (zero is not None and not middle) else None
        moved = not middle and z is not None and bool(z.any())
        exact = scale.type != "F32" or z is None or exact_minima(scales(), z)
        kind = fit(bits if middle else 8, columns, group, order is not None, moved, exact)

        def prepare() -> Encode:
            return encoder(kind.type, q, Scales(scales(), None if kind.type == "G8" else zeros(), group, order))

        return QuantisedTensor(f"{parts.module}.weight", kind.type, shape, prepare), kind

    def _scale(self, parts: Parts, shape: tuple[int, int]) -> tuple[StoredTensor, int]:
        """The scales, and how many inputs share one: whatever one of the groups allows."""
        rows, columns = shape
        sizes = {scheme.group_size for scheme in self.schemes if not scheme.floating}
        allowed = {(rows, -(-columns // size)): size for size in sizes if size is not None}
        whole: list[tuple[int, ...]] = [(rows, 1), (rows,), (1,), (1, 1), ()] if None in sizes else []
        scale = parts.need("weight_scale", FLOATS, [*allowed, *whole])
        size = allowed.get(scale.shape) if len(scale.shape) == 2 else None
        return scale, columns if size is None else min(size, columns)

    def _order(self, parts: Parts, columns: int, group: int) -> Ints | None:
        tensor = parts.get("weight_g_idx", ("I32",), [(columns,)])
        if tensor is None:
            return None
        order, groups = integers(tensor), -(-columns // group)
        if (order == -1).all() or np.array_equal(order, np.arange(columns) // group):
            return None
        if order.min() < 0 or order.max() >= groups:
            raise parts.error("weight_g_idx", f"names a group outside 0 to {groups - 1}")
        return order

    def _floating(self, parts: Parts, weight: StoredTensor) -> tuple[QuantisedTensor, Fit]:
        rows, columns = weight.shape
        grids: dict[tuple[int, ...], Block] = {(rows, 1): (1, columns), (rows,): (1, columns)}
        grids |= {(): (rows, columns), (1,): (rows, columns), (1, 1): (rows, columns)}
        for scheme in self.schemes:
            if scheme.floating and scheme.block is not None:
                grids[(-(-rows // scheme.block[0]), -(-columns // scheme.block[1]))] = scheme.block
            if scheme.floating and scheme.group_size is not None:
                grids[(rows, -(-columns // scheme.group_size))] = (1, scheme.group_size)
        scale = parts.need("weight_scale", FLOATS, list(grids))
        zero = parts.get("weight_zero_point", ("I8", "F8_E4M3", *FLOATS), [scale.shape])
        if zero is not None and np.frombuffer(zero.data, np.uint8).any():
            raise parts.error("weight_zero_point", "moves 8-bit floats, which is not supported; it must be zero")
        block = grids[scale.shape]
        return expanded(parts, weight, floats(scale).reshape(-1, -(-columns // block[1])), block)


def _zero_shapes(rows: int, groups: int, bits: int) -> list[tuple[int, ...]]:
    packed = (-(-rows * bits // 32), groups)
    return [packed, (rows, groups), *([(rows,), (1,), (1, 1), ()] if groups == 1 else [])]


def read(config: ConfigReader) -> Compressed:
    """The settings of quantization_config (older files: compression_config)."""
    _refuse_format(config)
    sparsity = config.section("sparsity_config")
    if sparsity is not None and (sparsity.string("format") or "dense") != "dense":
        raise config.error(f"sparsity_config {sparsity.string('format')!r} is not supported; supported: dense")
    transforms = config.section("transform_config")
    if transforms is not None and transforms.values.get("config_groups"):
        raise config.error("transform_config (rotated weights) is not supported; use the model without transforms")
    groups = config.section("config_groups")
    if groups is None or not groups.values:
        raise config.error("config_groups of compressed-tensors is missing; without it the weights cannot be read")
    return Compressed(tuple(_schemes(groups)))


def _schemes(groups: ConfigReader) -> list[Scheme]:
    found = []
    for name in groups.values:
        if isinstance(groups.values[name], list):
            raise groups.error(f"config_groups.{name} is a preset's name alone; supported: groups with their weights")
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            continue
        _refuse_format(group)
        found.append(_scheme(weights))
    return found


def _refuse_format(config: ConfigReader) -> None:
    form = config.string("format") or "dense"
    if form not in (*FORMATS, *_PLAIN):
        raise config.error(f"the compressed-tensors format {form!r} is not supported; supported: {', '.join(FORMATS)}")


def _scheme(weights: ConfigReader) -> Scheme:
    bits = weights.integer("num_bits", 8, low=1, high=64)
    floating = (weights.string("type") or "int").lower() == "float"
    if bits not in ((8,) if floating else (4, 8)):
        kind = "floats" if floating else "integers"
        raise weights.error(
            f"compressed-tensors with {kind} of {bits} bits is not supported; supported: 4 and 8 (floats: 8)"
        )
    strategy = (weights.string("strategy") or "tensor").lower()
    if strategy not in ("tensor", "channel", "group", "block"):
        raise weights.error(f"the strategy {strategy!r} is not supported; supported: tensor, channel, group, block")
    size = weights.integer("group_size", -1, low=-1, high=1 << 24)
    if strategy == "group" and size < 1:
        raise weights.error(f"group_size is {size}; the strategy group needs at least 1")
    block = block_size(weights, "block_structure") if strategy == "block" else None
    if strategy == "block" and (block is None or not floating):
        raise weights.error("the strategy block needs a block_structure such as [128, 128], and floats of 8 bits")
    return Scheme(bits, floating, size if strategy == "group" else None, block)
