"""Gemma 2: every other layer has a window; scores and logits are capped."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import gemma
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.rope import RopeDefaults
from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")

_ATTN_CAP, _LOGIT_CAP = 50.0, 30.0


def hf_spec(config: ConfigReader) -> ModelSpec:
    spec = gemma.hf_spec(config, "gemma2", RopeDefaults(), 8192, None)
    return replace(
        gemma.hf_windows(config, spec, period=2),
        attn_softcap=gemma.hf_cap(config, "attn_logit_softcapping", _ATTN_CAP),
        logit_softcap=gemma.hf_cap(config, "final_logit_softcapping", _LOGIT_CAP),
    )


def gguf_spec(meta: Metadata) -> ModelSpec:
    spec = gemma.gguf_spec(meta, "gemma2", wide_layers=46)
    window = meta.integer(".attention.sliding_window", 4096, low=1)
    return replace(
        gemma.gguf_windows(meta, spec, window, period=2),
        attn_softcap=meta.number(".attn_logit_softcapping", _ATTN_CAP),
        logit_softcap=meta.number(".final_logit_softcapping", _LOGIT_CAP),
    )


def tensors(spec: ModelSpec) -> list[TensorRule]:
    return gemma.tensors(spec, qk_norm=False)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    return gemma.forward(ops, spec, num_tokens, qk_norm=False)


ARCHITECTURE = Architecture(
    name="gemma2",
    hf_classes=("Gemma2ForCausalLM",),
    model_types=("gemma2",),
    gguf_names=("gemma2",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=forward,
)
