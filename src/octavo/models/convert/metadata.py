"""Everything of a model but its weights, for a new GGUF file or a new directory, from either kind of source.

Between two of a kind the files' own words are kept; across, they are made from the spec and the tokeniser.
Owns nothing; off switch: none.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from octavo.models.convert import settings
from octavo.models.convert.plan import Plan
from octavo.models.convert.settings import Rope
from octavo.models.convert.vocabulary import gguf_tokenizer, write_tokenizer
from octavo.models.files import listing, present
from octavo.models.generation import GGUF_KEYS
from octavo.models.gguf import GgufFile
from octavo.models.gguf_parts import gguf_of, open_gguf
from octavo.models.jsonfile import read_json
from octavo.models.metadata import Metadata
from octavo.models.registry import architecture_of
from octavo.models.spec import Checkpoint, ModelSpec
from octavo.models.tokenizer import TokenizerParts
from octavo.ops.numeric import F32, FLOAT_BYTES

_DROPPED = ("general.file_type", "general.quantization_version", "general.alignment")
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_KEPT = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def for_gguf(checkpoint: Checkpoint, source: Path, spec: ModelSpec) -> tuple[dict[str, Any], dict[str, F32]]:
    """Metadata, and the small tensors that stand for settings."""
    file = gguf_of(source)
    if file is None:
        rope = _hf_rope(source, spec)
        values = settings.gguf_metadata(architecture_of(spec), spec, rope, checkpoint.name)
        values |= {GGUF_KEYS[name]: value for name, value in checkpoint.sampling().chosen().items()}
        return values | gguf_tokenizer(source, _hf_parts(source), spec.vocab), settings.gguf_factors(spec, rope)
    opened = open_gguf(file)
    try:
        kept = {key: value for key, value in opened.metadata.items() if key not in _DROPPED}
        return kept, {name: _floats(opened, name) for name in _FACTORS if name in opened.tensors}
    finally:
        opened.close()


def file_facts(made: Plan) -> dict[str, Any]:
    """What other readers want to be told of the numbers: the commonest type of matrices, the version of the formats."""
    counts = Counter(target.type for target in made.targets if len(target.shape) > 1)
    common = counts.most_common(1)[0][0]
    facts: dict[str, Any] = {"general.file_type": _FILE_TYPES[common]} if common in _FILE_TYPES else {}
    if any(target.type not in FLOAT_BYTES for target in made.targets):
        facts["general.quantization_version"] = 2
    return facts


def _floats(file: GgufFile, name: str) -> F32:
    return np.frombuffer(file.data(name), "<f4").copy()


def write_directory(checkpoint: Checkpoint, source: Path, spec: ModelSpec, made: Plan, path: Path) -> None:
    """config.json, the tokeniser's files, generation_config.json and the chat template."""
    embedding = made.pieces["embed.weight"].type
    file = gguf_of(source)
    if file is None:
        config: dict[str, Any] = read_json(source / "config.json", dict)
        for key in ("quantization_config", "compression_config", "dtype"):
            config.pop(key, None)
        config["torch_dtype"] = _DTYPES[embedding]
        names = [name for name in _KEPT if present(source / name)]
        for name in (*names, *(found.name for found in listing(source, "*.jinja"))):
            shutil.copyfile(source / name, path / name)
    else:
        opened = open_gguf(file)
        try:
            rope = _gguf_rope(Metadata(opened))
        finally:
            opened.close()
        parts = _gguf_parts(file)
        config = settings.hf_config(architecture_of(spec), spec, rope, embedding)
        config["eos_token_id"] = list(checkpoint.eos_token_ids)
        config["bos_token_id"] = parts.bos_id
        config["pad_token_id"] = parts.backend.token_to_id(parts.special_strings.get("pad_token", ""))
        write_tokenizer(path, parts, checkpoint.sampling().chosen())
    (path / "config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2))


def _hf_rope(folder: Path, spec: ModelSpec) -> Rope:
    """The base and the scaling in config.json's words."""
    config: dict[str, Any] = read_json(folder / "config.json", dict)
    section = config.get("rope_scaling") or config.get("rope_parameters") or {}
    section = section.get("full_attention", section)
    theta = section.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        theta = settings.theta_of(spec.ropes[0]) if spec.ropes[0].kind == "default" else 10000.0
    return Rope(float(theta), section)


def _gguf_rope(meta: Metadata) -> Rope:
    """The same from GGUF metadata; the scaling where its words are the same."""
    section: dict[str, Any] = {}
    factor = meta.number(".rope.scaling.factor", 1.0)
    if meta.string(".rope.scaling.type", "linear") == "yarn" and factor != 1.0:
        section = {"rope_type": "yarn", "factor": settings.clean(factor)}
        if meta.has(".rope.scaling.original_context_length"):
            section["original_max_position_embeddings"] = meta.integer(".rope.scaling.original_context_length")
    return Rope(meta.number(".rope.freq_base", 10000.0), section)


def _hf_parts(folder: Path) -> TokenizerParts:
    from octavo.models.tokenizer_hf import read_parts

    return read_parts(folder)


def _gguf_parts(file: Path) -> TokenizerParts:
    from octavo.models.tokenizer_gguf import read_parts

    return read_parts(file)
