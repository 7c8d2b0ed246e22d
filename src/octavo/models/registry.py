"""Which architectures there are, and which one a file is of. A new model is one file and one line here.

Owns the list; whatever is not on it is refused with what is. Off switch: none.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.models.architecture import Architecture, Forward, TensorRule
from octavo.models.architectures import (
    gemma2,
    gemma3,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
)
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelSpec

ARCHITECTURES: tuple[Architecture, ...] = (
    mixtral.ARCHITECTURE,  # before llama, which GGUF files call it
    llama.ARCHITECTURE,
    mistral.ARCHITECTURE,
    qwen2.ARCHITECTURE,
    qwen3.ARCHITECTURE,
    phi3.ARCHITECTURE,
    granite.ARCHITECTURE,
    smollm3.ARCHITECTURE,
    olmo2.ARCHITECTURE,
    olmo3.ARCHITECTURE,
    gemma2.ARCHITECTURE,
    gemma3.ARCHITECTURE,
    qwen2_moe.ARCHITECTURE,
    qwen3_moe.ARCHITECTURE,
)
_BY_NAME = {one.name: one for one in ARCHITECTURES}


def architecture_of(spec: ModelSpec) -> Architecture:
    return _BY_NAME[spec.architecture]


def forward_of(architecture: str) -> Forward:
    return _BY_NAME[architecture].forward


def rules_of(spec: ModelSpec) -> Sequence[TensorRule]:
    """What a model's files must hold, in the order of the forward pass."""
    return architecture_of(spec).tensors(spec)


def of_hf(config: ConfigReader) -> Architecture:
    """By the class that config.json names, or by its model_type where it names none."""
    classes = config.values.get("architectures")
    if isinstance(classes, list) and classes:
        for one in ARCHITECTURES:
            if any(name in one.hf_classes for name in classes):
                return one
        known = ", ".join(name for one in ARCHITECTURES for name in one.hf_classes)
        raise config.error(f"architecture {classes[0]} is not supported; supported: {known}")
    model_type = config.string("model_type")
    for one in ARCHITECTURES:
        if model_type in one.model_types:
            return one
    known = ", ".join(name for one in ARCHITECTURES for name in one.model_types)
    raise config.error(f"model_type {model_type!r} is not supported; supported: {known}")


def of_gguf(meta: Metadata) -> Architecture:
    """By general.architecture; a name that several share is settled by what else the file says."""
    name = meta.string("general.architecture")
    for one in ARCHITECTURES:
        if name in one.gguf_names and one.gguf_accepts(meta):
            return one
    known = ", ".join(dict.fromkeys(name for one in ARCHITECTURES for name in one.gguf_names))
    raise meta.error(f"architecture {name!r} is not supported; supported: {known}")


def hf_model(config: ConfigReader) -> ModelSpec:
    """The spec of a model directory; settings that change results and that nobody read are refused."""
    spec = of_hf(config).hf_spec(config)
    config.refuse_unread()
    return spec


def gguf_model(meta: Metadata) -> ModelSpec:
    """The spec of a GGUF file; settings that change results and that nobody read are refused."""
    read = of_gguf(meta).gguf_spec
    assert read is not None, "an architecture with GGUF names reads GGUF"
    spec = read(meta)
    meta.refuse_unread()
    return spec
