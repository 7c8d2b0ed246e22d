"""AWQ, GEMM layout: 4-bit words along the outputs of transposed matrices, in an interleaved order.

For a module with K inputs, N outputs and G groups of inputs: qweight int32 [K, N / 8], qzeros int32 [G, N / 8], scales
[G, N]. The fields of a word, lowest first, are the outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
w[n, k] = scales[g, n] (q[k, n] - zero[g, n]). Owns nothing; off switch: none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.models.config_reader import ConfigReader
from octavo.models.quantised.gptq import group_size
from octavo.models.quantised.matrix import Encode, Fit, Ints, QuantisedTensor, Scales, encoder, exact_minima, fit
from octavo.models.quantised.parts import FLOATS, Parts, fields, floats, integers
from octavo.ops.numeric import F32

_FIELD_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Awq:
    """The settings of a directory."""

    group_size: int
    """-1: one group."""

    label = "AWQ"
    suffixes = ("qweight", "qzeros", "scales")

    def tensor(self, parts: Parts) -> tuple[QuantisedTensor, Fit]:
        """The module's matrix, checked; reads no values."""
        qweight = parts.need("qweight", ("I32",))
        columns, rows = qweight.shape[0], 8 * qweight.shape[1]
        group = columns if self.group_size == -1 else min(self.group_size, columns)
        groups = -(-columns // group)
        scales = parts.need("scales", FLOATS, [(groups, rows)])
        qzeros = parts.need("qzeros", ("I32",), [(groups, rows // 8)])
        words = integers(qweight)

        def zeros() -> F32:
            return _outputs(integers(qzeros)).astype(np.float32)

        exact = scales.type != "F32" or exact_minima(floats(scales).T, zeros())
        kind = fit(4, columns, group, False, True, exact)

        def q(begin: int, end: int) -> Ints:
            return _outputs(words[:, begin // 8 : -(-end // 8)])[: end - begin]

        def prepare() -> Encode:
            return encoder(kind.type, q, Scales(np.ascontiguousarray(floats(scales).T), zeros(), group))

        return QuantisedTensor(f"{parts.module}.weight", kind.type, (rows, columns), prepare), kind


def _outputs(words: Ints) -> Ints:
    """Words [inputs, outputs / 8] as values [outputs, inputs]."""
    values = fields(words, 4)[:, :, _FIELD_OF_OUTPUT]
    return np.ascontiguousarray(values.reshape(len(words), -1).T)


def read(config: ConfigReader) -> Awq:
    """The settings of quantization_config, or of an older quant_config.json."""
    bits = config.integer("w_bit" if config.has("w_bit") else "bits", low=1, high=32)
    if bits != 4:
        raise config.error(f"AWQ with bits {bits} is not supported; supported: 4")
    form = (config.string("version") or config.string("format") or "gemm").lower()
    backend = (config.string("backend") or "auto").lower()
    if form != "gemm" or backend == "llm-awq":
        named = backend if backend == "llm-awq" else form
        raise config.error(f"the AWQ layout {named!r} is not supported; supported: version gemm")
    return Awq(group_size(config, "q_group_size" if config.has("q_group_size") else "group_size"))
