"""All tensors of a model directory, whatever way its weights are stored.

`open_weights` reads config.json's quantization_config (older files: compression_config, or a quantize_config.json or
quant_config.json beside it) and puts one tensor in the place of those that together make a matrix. Which modules are
quantised is what the tensors say. Owns the files' mappings until the last view is gone. Off switch: none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.models.config_reader import ConfigReader
from octavo.models.files import present
from octavo.models.jsonfile import read_json
from octavo.models.quantised import awq, compressed, fp8, gptq
from octavo.models.quantised.matrix import Fit, QuantisedTensor
from octavo.models.quantised.parts import Parts, modules
from octavo.models.safetensors import StoredTensor, open_safetensors
from octavo.models.spec import ModelError

SUPPORTED = (
    "GPTQ (4 and 8 bits), AWQ (version gemm), compressed-tensors (pack-, int-, naive- and float-quantized), "
    "FP8 (quant_method fp8), float weights, or a GGUF file"
)

_ACTIVATION = re.compile(
    r".*\.(([kvq]|kv|prob|input|output|prob_output)_(scale|zero_point|global_scale)|[kv]_proj\.output_scale)"
)
"""Scales of activations and of the KV cache, which stay in floats here."""

FileTensor = StoredTensor | QuantisedTensor
Method = gptq.Gptq | awq.Awq | compressed.Compressed | fp8.Fp8


@dataclass(frozen=True)
class Weights:
    """The tensors of a directory by name, in the order of its files."""

    tensors: dict[str, FileTensor]
    files: list[Path]
    """What they depend on besides config.json."""
    notes: tuple[str, ...]
    """What a user should know of how the weights were changed."""


def open_weights(folder: Path) -> Weights:
    """Reads headers and small tensors; ModelError says what is wrong or not supported."""
    tensors, files = open_safetensors(folder)
    config, beside = _quantisation(folder)
    if config is None:
        return Weights(dict(tensors), files, ())
    method = _method(config, beside)
    made = {tensor.name: (tensor, fit, parts) for tensor, fit, parts in _matrices(str(folder), method, tensors)}
    taken = {f"{parts.module}.{suffix}": name for name, (_, _, parts) in made.items() for suffix in parts.found}
    placed: dict[str, FileTensor] = {}
    activations = _activations(method, config)
    for name, stored in tensors.items():
        if name not in taken and _ACTIVATION.fullmatch(name):
            activations = True
        elif name not in taken:
            if name in made:
                raise ModelError(f"{folder}: tensor {name} is stored twice, in float numbers and quantised")
            placed[name] = stored
        elif taken[name] not in placed:
            placed[taken[name]] = made[taken[name]][0]
    notes = _notes(method.label, [fit for _, fit, _ in made.values()], activations)
    return Weights(placed, files if beside is None else [*files, beside], notes)


def _quantisation(folder: Path) -> tuple[ConfigReader | None, Path | None]:
    """The description of the quantisation, and the file it is in where that is not config.json."""
    path = folder / "config.json"
    values: dict[str, Any] = read_json(path, dict)
    reader = ConfigReader(path, values)
    inner = values.get("text_config")
    for source in (reader, ConfigReader(path, inner, "text_config.") if isinstance(inner, dict) else reader):
        for key in ("quantization_config", "compression_config"):
            section = source.section(key)
            if section is not None:
                return section, None
    for name in ("quantize_config.json", "quant_config.json"):
        if present(folder / name):
            beside: dict[str, Any] = read_json(folder / name, dict)
            return ConfigReader(folder / name, beside), folder / name
    return None, None


def _method(config: ConfigReader, beside: Path | None) -> Method:
    old = {None: None, "quantize_config.json": "gptq", "quant_config.json": "awq"}[beside.name if beside else None]
    name = config.string("quant_method") or old or ("compressed-tensors" if config.has("config_groups") else None)
    if name == "gptq":
        return gptq.read(config)
    if name == "awq":
        return awq.read(config)
    if name == "compressed-tensors":
        return compressed.read(config)
    if name in ("fp8", "fbgemm_fp8"):
        return fp8.read(config)
    raise config.error(f"quantization_config with quant_method {name!r} is not supported; supported: {SUPPORTED}")


def _matrices(
    where: str, method: Method, tensors: Mapping[str, StoredTensor]
) -> Iterable[tuple[QuantisedTensor, Fit, Parts]]:
    for module, found in modules(tensors, method.suffixes):
        parts = Parts(where, module, found)
        made = method.tensor(parts)
        if made is not None:
            yield *made, parts
    if isinstance(method, compressed.Compressed):
        for module, found in modules(tensors, ("weight", *method.suffixes[1:])):
            parts = Parts(where, module, found)
            plain = method.plain(parts)
            if plain is not None:
                yield *plain, parts


def _activations(method: Method, config: ConfigReader) -> bool:
    """Whether the scheme rounds activations too."""
    if isinstance(method, fp8.Fp8):
        return True
    groups = config.section("config_groups") if isinstance(method, compressed.Compressed) else None
    described = groups.values.values() if groups else ()
    return any(isinstance(group, dict) and group.get("input_activations") for group in described)


def _notes(label: str, fits: list[Fit], activations: bool) -> tuple[str, ...]:
    notes = []
    types = {"F32": "float32", "BF16": "bfloat16 (exact)"}
    for (kind, reason), count in Counter((fit.type, fit.reason) for fit in fits if fit.reason).items():
        notes.append(f"{count} of {len(fits)} {label} matrices are expanded to {types[kind]}: {reason}")
    if activations and fits:
        notes.append(
            f"{label}: activations and the KV cache are not quantised, only the weights are as the file has them"
        )
    return tuple(notes)
