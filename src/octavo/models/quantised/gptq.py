"""GPTQ: 4- and 8-bit fields along the inputs of transposed matrices, zero points stored less one (v1) or not (v2).

For a module with K inputs and N outputs, b bits and G groups of inputs: qweight int32 [K b / 32, N], qzeros int32
[G, N b / 32], scales [G, N], g_idx int32 [K], the group of each input (left out or all zero: in order).
w[n, k] = scales[g, n] (q[k, n] - zero[g, n]). Owns nothing; off switch: none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.models.config_reader import ConfigReader
from octavo.models.quantised.matrix import Encode, Fit, Ints, QuantisedTensor, Scales, encoder, exact_minima, fit
from octavo.models.quantised.parts import FLOATS, Parts, fields, floats, integers
from octavo.models.safetensors import StoredTensor
from octavo.models.spec import ModelError
from octavo.ops.numeric import F32

SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")


@dataclass(frozen=True)
class Gptq:
    """The settings of a directory."""

    bits: int
    group_size: int
    """-1: one group."""
    zeros_less_one: bool

    label = "GPTQ"
    suffixes = SUFFIXES

    def tensor(self, parts: Parts) -> tuple[QuantisedTensor, Fit]:
        """The module's matrix, checked; reads no more than its zero points and order."""
        qweight = parts.need("qweight", ("I32",))
        per_word = 32 // self.bits
        rows, columns = qweight.shape[1], qweight.shape[0] * per_word
        group = columns if self.group_size == -1 else min(self.group_size, columns)
        groups = -(-columns // group)
        scales = parts.need("scales", FLOATS, [(groups, rows)])
        qzeros = parts.need("qzeros", ("I32",), [(groups, -(-rows // per_word))])
        order = self._order(parts, columns, group, groups)
        middle = self.bits == 8 and bool((self._zeros(qzeros, rows) == 128).all())
        exact = scales.type != "F32" or middle or exact_minima(floats(scales).T, self._zeros(qzeros, rows))
        kind = fit(self.bits, columns, group, order is not None, not middle, exact)
        words = integers(qweight)

        def q(begin: int, end: int) -> Ints:
            values = fields(words[:, begin:end], self.bits).transpose(1, 0, 2).reshape(end - begin, columns)
            return (values.view(np.int8) ^ np.int8(-128)) if kind.type == "G8" else values

        def prepare() -> Encode:
            z = None if kind.type == "G8" else self._zeros(qzeros, rows)
            return encoder(kind.type, q, Scales(np.ascontiguousarray(floats(scales).T), z, group, order))

        return QuantisedTensor(f"{parts.module}.weight", kind.type, (rows, columns), prepare), kind

    def _zeros(self, qzeros: StoredTensor, rows: int) -> F32:
        """[rows, groups]. One is added within the field, as the library that wrote v1 does."""
        stored = fields(integers(qzeros), self.bits).reshape(qzeros.shape[0], -1)[:, :rows]
        if self.zeros_less_one:
            stored = (stored + np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        return np.ascontiguousarray(stored.T).astype(np.float32)

    def _order(self, parts: Parts, columns: int, group: int, groups: int) -> Ints | None:
        tensor = parts.get("g_idx", ("I32",), [(columns,), (0,)])
        if tensor is None or tensor.shape == (0,):
            return None
        order = integers(tensor)
        if order.min() < 0 or order.max() >= groups:
            raise parts.error(
                "g_idx", f"names group {order.max()} or {order.min()}; there are groups 0 to {groups - 1}"
            )
        in_order = not order.any() or np.array_equal(order, np.arange(columns) // group)
        return None if in_order else order


def read(config: ConfigReader) -> Gptq:
    """The settings of quantization_config, or of an older quantize_config.json."""
    bits = config.integer("bits", low=1, high=32)
    if bits not in (4, 8):
        raise config.error(f"GPTQ with bits {bits} is not supported; supported: 4 and 8")
    form = config.string("checkpoint_format") or config.string("format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise config.error(f"the GPTQ checkpoint_format {form!r} is not supported; supported: gptq, gptq_v2")
    if config.flag("is_marlin_format"):
        raise config.error("the Marlin layout of GPTQ is not supported; use the model in checkpoint_format gptq")
    if (config.string("pack_dtype") or "int32") != "int32":
        raise config.error(f"GPTQ with pack_dtype {config.string('pack_dtype')} is not supported; supported: int32")
    _refuse_overrides(config, bits)
    return Gptq(bits, group_size(config), form == "gptq")


def group_size(config: ConfigReader, key: str = "group_size") -> int:
    size = config.integer(key, -1, low=-1, high=1 << 24)
    if size == 0:
        raise config.error(f"{key} is 0; it must be -1 (one group) or at least 1")
    return size


def _refuse_overrides(config: ConfigReader, bits: int) -> None:
    """Rules for single modules: those that leave modules alone ("-:") show in the tensors themselves."""
    rules = config.section("dynamic")
    for name, rule in (rules.values if rules else {}).items():
        if name.startswith("-:") or not rule:
            continue
        if not isinstance(rule, dict) or any(rule.get(key) not in (None, config.values.get(key)) for key in _OVERRIDES):
            raise ModelError(
                f"{config.path}: the rule {name!r} of GPTQ's dynamic gives some modules other sizes, which is not "
                f"supported; supported: one group_size and bits {bits} for all, and rules that leave modules alone"
            )


_OVERRIDES = ("bits", "group_size", "pack_dtype", "format", "checkpoint_format")
