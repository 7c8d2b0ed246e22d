"""What a model's makers suggest for drawing its answers: generation_config.json, or GGUF's general.sampling keys.

A request that leaves a field out gets the suggestion instead of the API's default. Read once, when the model is
opened; a value out of bounds is refused, settings that Octavo has no counterpart of are named in a warning.
Off switch: `--generation-config none`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.models.files import present
from octavo.models.jsonfile import read_json
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelError
from octavo.types import SamplingDefaults

log = logging.getLogger("octavo.models")

_BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 1 << 31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Suggestion -> where a GGUF file keeps it."""
_NOT_FOLLOWED: dict[str, Any] = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "forced_bos_token_id": None,
    "min_length": 0,
    "min_new_tokens": None,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "penalty_alpha": None,
    "suppress_tokens": None,
    "typical_p": 1,
    "general.sampling.mirostat": 0,
    "general.sampling.sequence": "",
    "general.sampling.xtc_probability": 0,
}
"""Setting -> the value (besides none) that changes nothing."""


def hf_sampling(folder: Path) -> SamplingDefaults:
    """The suggestions of a directory's generation_config.json; none where there is no such file."""
    path = folder / "generation_config.json"
    if not present(path):
        return SamplingDefaults()
    content: dict[str, Any] = read_json(path, dict)
    return _checked(str(path), content, {name: name for name in _BOUNDS}, path.name)


def gguf_sampling(meta: Metadata) -> SamplingDefaults:
    """The suggestions of a GGUF file's metadata."""
    return _checked(meta.file.path.name, meta.values, GGUF_KEYS, "the file's metadata")


def _checked(where: str, values: Mapping[str, Any], keys: Mapping[str, str], source: str) -> SamplingDefaults:
    found: dict[str, Any] = {}
    for name, key in keys.items():
        value = values.get(key)
        if value is None:
            continue
        low, high = _BOUNDS[name]
        whole = name == "top_k"
        right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not right or not math.isfinite(value) or not low <= value <= high:
            kind = "a whole number" if whole else "a number"
            raise ModelError(
                f"{where}: {key} is {str(value)[:40]!r}, and {kind} from {low:g} to {high:g} is possible; "
                "mend the file, or --generation-config none would work"
            )
        found[name] = value if whole else _shortest(float(value))
    if ignored := [key for key, neutral in _NOT_FOLLOWED.items() if values.get(key) not in (None, neutral)]:
        log.warning("%s: %s: not followed", where, ", ".join(ignored))
    return SamplingDefaults(**found, source=source) if found else SamplingDefaults()


def _shortest(value: float) -> float:
    """GGUF holds float32: 0.6 there is 0.6000000238 here, and means 0.6."""
    return float(f"{value:.6g}")
