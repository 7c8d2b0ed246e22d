"""Typed, bounded access to a GGUF file's metadata: a wrong type or an absurd size is one sentence that names the key.

Owns the record of which keys were asked for; lives while one model is opened. Keys that begin with a dot belong to the
file's architecture (".block_count" is "llama.block_count" in a llama's file). `refuse_unread` is the net under all
readers: a setting that changes what a model computes and that nothing asked for is refused, never ignored.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.models.config_reader import short
from octavo.models.gguf import GgufFile
from octavo.models.spec import ModelError

CHANGES_RESULTS: dict[str, tuple[Any, ...]] = {
    ".attention.alibi_bias_max": (0,),
    ".attention.max_alibi_bias": (0,),
    ".attention.causal": (True,),
    ".attention.clamp_kqv": (0,),
    ".attention.kv_lora_rank": (0,),
    ".attention.q_lora_rank": (0,),
    ".attention.scale": (0,),
    ".attention.sliding_window": (0,),
    ".attention.sliding_window_pattern": (0,),
    ".attention.temperature_length": (0,),
    ".attn_logit_softcapping": (0,),
    ".embedding_scale": (0, 1),
    ".expert_count": (0,),
    ".final_logit_softcapping": (0,),
    ".leading_dense_block_count": (0,),
    ".logit_scale": (0, 1),
    ".pooling_type": (0,),
    ".residual_scale": (0, 1),
    ".rope.dimension_sections": (),
    ".rope.freq_base_swa": (0,),
    ".rope.scaling.attn_factor": (0, 1),
    ".rope.scaling.factor": (0, 1),
    ".rope.scaling.type": ("none",),
    ".rope.scaling.yarn_attn_factor": (0, 1),
    ".rope.scaling.yarn_ext_factor": (-1, 1),
    ".rope.scaling.yarn_log_multiplier": (0,),
    ".ssm.conv_kernel": (0,),
}
"""Key -> values that change nothing."""


class Metadata:
    """The metadata of one file."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.values = file.metadata
        self._read: set[str] = set()

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.file.path.name}: {what}")

    def full(self, key: str) -> str:
        """The key as it stands in the file."""
        return f"{self.values.get('general.architecture')}{key}" if key.startswith(".") else key

    def has(self, key: str) -> bool:
        self._read.add(key)
        return self.full(key) in self.values

    def _value(self, key: str, default: Any) -> Any:
        self._read.add(key)
        return self.values.get(self.full(key), default)

    def _wrong(self, key: str, value: Any, must: str) -> ModelError:
        return self.error(f"metadata key {self.full(key)} is {short(value)}; it must be {must}")

    def integer(self, key: str, default: int | None = None, low: int = 0, high: int = 1 << 31) -> int:
        value = self._value(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = value.flat[0].item()  # one number a layer, all alike
        if value is None:
            raise self.error(f"metadata key {self.full(key)} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(key, value, f"a whole number of {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if value is None:
            raise self.error(f"metadata key {self.full(key)} is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < 1e30:
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def string(self, key: str, default: str | None = None) -> str | None:
        value = self._value(key, default)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def strings(self, key: str) -> list[str]:
        value = self._value(key, None)
        if not isinstance(value, list) or not value:
            raise self.error(f"metadata key {self.full(key)} is missing; the file holds no tokeniser")
        return value

    def vector(self, name: str, count: int) -> tuple[float, ...] | None:
        """A small float32 tensor of positive numbers (factors of rotary frequencies); None where absent."""
        tensor = self.file.tensors.get(name)
        if tensor is None:
            return None
        if tensor.type != "F32" or tensor.shape != (count,):
            raise self.error(f"tensor {name} is {tensor.type} of shape {list(tensor.shape)}; it must be F32 [{count}]")
        values: npt.NDArray[np.float32] = np.frombuffer(self.file.data(name), "<f4")
        if not ((values > 0) & (values < math.inf)).all():
            raise self.error(f"tensor {name} holds a value that is no positive number")
        return tuple(float(value) for value in values)

    def refuse_unread(self) -> None:
        """Refuses settings that change results and that no reader of this architecture looked at."""
        for key, neutral in CHANGES_RESULTS.items():
            value = self.values.get(self.full(key))
            if key in self._read or value is None or _idle(value, neutral):
                continue
            works = " or ".join([*(repr(one).lower() for one in neutral), "absent"])
            raise self.error(
                f"metadata key {self.full(key)} is {short(value)}, which this architecture does not use; "
                f"it must be {works}"
            )


def _idle(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a value, or a list's every value, changes nothing."""
    if isinstance(value, np.ndarray):
        return bool(neutral) and bool(np.isin(value, neutral).all())
    return value in neutral
