"""Typed, bounded access to config.json: a wrong type or an absurd size is one sentence that names file and key.

Owns a parsed file and the record of which keys were asked for; lives while one model is opened. A key that is null
counts as absent where a default is given, as Hugging Face's configurations have it. `refuse_unread` is the net under
all readers: a setting that changes what a model computes and that nothing asked for is refused, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from octavo.models.spec import ModelError

T = TypeVar("T")

CHANGES_RESULTS: dict[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "experts_per_token": (0,),
    "final_logit_softcapping": (),
    "interleaved_sliding_window": (),
    "kv_lora_rank": (),
    "layer_types": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "moe_intermediate_size": (),
    "multi_query": (False,),
    "n_routed_experts": (0,),
    "no_rope_layers": (),
    "num_experts": (0,),
    "num_experts_per_tok": (0,),
    "num_local_experts": (0,),
    "parallel_attn": (False,),
    "partial_rotary_factor": (1,),
    "q_lora_rank": (),
    "qk_layernorm": (False,),
    "qkv_bias": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "rope_local_base_freq": (),
    "rope_parameters": (),
    "rope_scaling": (),
    "rotary_pct": (1,),
    "sliding_window": (),
    "sliding_window_pattern": (),
    "use_bias": (False,),
    "use_mla": (False,),
    "use_mrope": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
"""Key -> values (besides null) that change nothing."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class ConfigReader:
    """One JSON object, or an object inside one."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self._prefix = prefix
        self._read: set[str] = set()

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what}")

    def wrong(self, key: str, must: str, default: Any = None) -> ModelError:
        """The value (or the default that stood for it) is not what it must be."""
        value = self.values.get(key)
        return self.error(f"{self._prefix}{key} is {short(default if value is None else value)}; it must be {must}")

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        self._read.add(key)
        return self.values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there and null, where that means something else than leaving it out."""
        return key in self.values and self.values[key] is None

    def _value(self, key: str, default: T) -> Any | T:
        self._read.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, low: int = 0, high: int = 1 << 31) -> int:
        value = self._value(key, default)
        if value is None:
            raise self.error(f"{self._prefix}{key} is missing")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"a whole number between {low} and {high}", default)
        return value

    def number(self, key: str, default: float | None = None, low: float = 0.0, high: float = 1e30) -> float:
        """A finite number above `low` and up to `high`."""
        value = self._value(key, default)
        if value is None:
            raise self.error(f"{self._prefix}{key} is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value <= high:
            raise self.wrong(key, f"a number above {low:g} and at most {high:g}", default)
        return float(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Exactly `count` positive numbers."""
        value = self._value(key, None)
        must = f"a list of {count} positive numbers"
        if not isinstance(value, list) or len(value) != count:
            has = f"a list of {len(value)}" if isinstance(value, list) else short(value)
            raise self.error(f"{self._prefix}{key} is {has}; it must be {must}")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, (int, float)) or not 0.0 < item < math.inf:
                raise self.error(f"{self._prefix}{key} holds {short(item)}; it must be {must}")
        return tuple(float(item) for item in value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def string(self, key: str, default: str | None = None) -> str | None:
        value = self._value(key, default)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def choice(self, key: str, default: str, choices: Mapping[str, T]) -> T:
        """The meaning of one of the texts that are supported."""
        value = self.string(key, default)
        if value is None or value not in choices:
            raise self.error(f"{self._prefix}{key} {value!r} is not supported; supported: {', '.join(choices)}")
        return choices[value]

    def items(self, key: str, count: int, kind: type[T], must: str) -> tuple[T, ...] | None:
        """A list of exactly `count` values of one type; None where absent."""
        value = self._value(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or any(type(item) is not kind for item in value):
            raise self.wrong(key, f"a list of {count} {must}")
        return tuple(value)

    def section(self, key: str) -> ConfigReader | None:
        """An object inside the object; None where absent."""
        value = self._value(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return ConfigReader(self.path, value, f"{self._prefix}{key}.")

    def refuse_unread(self, known: Mapping[str, Sequence[Any]] = CHANGES_RESULTS) -> None:
        """Refuses settings that change results and that no reader of this architecture looked at."""
        for key, neutral in known.items():
            value = self.values.get(key)
            if key in self._read or value is None or any(value == one for one in neutral) or self._idle(key, value):
                continue
            works = " or ".join([*(repr(one).lower() for one in neutral), "absent"])
            raise self.error(
                f"{self._prefix}{key} {short(value)} is not supported for this architecture; it must be {works}"
            )

    def _idle(self, key: str, value: Any) -> bool:
        """Whether a setting changes nothing beside the others: windows that no layer has, experts that are none."""
        if key == "layer_types":
            return "sliding_window" not in self._read and _all(value, "full_attention")
        if key == "no_rope_layers":
            return _all(value, 1)
        if key in ("sliding_window_pattern", "interleaved_sliding_window"):
            window = self.values.get("sliding_window")
            return window is None or self._idle("sliding_window", window)
        if key == "sliding_window":
            return self.values.get("use_sliding_window") is False or _all(
                self.values.get("layer_types"), "full_attention"
            )
        if key in ("num_experts_per_tok", "experts_per_token", "moe_intermediate_size"):
            counts = [self.values[name] for name in _EXPERTS if self.values.get(name) is not None]
            return bool(counts) and not any(counts)
        return False


def _all(value: Any, wanted: Any) -> bool:
    return isinstance(value, list) and all(one == wanted for one in value)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
