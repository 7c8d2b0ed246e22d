"""Gemma 3, text: five layers with a window for one without, each kind with its own rotary embedding; q and k normed."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import gemma
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.rope import RopeDefaults, base_frequencies, spec_of
from octavo.models.spec import ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")

_PERIOD = 6
_SIZES = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "vocab_size": 262208,
}
"""What the inner configuration of a model that reads images need not say."""
_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4


def hf_spec(config: ConfigReader) -> ModelSpec:
    """Of the text, where the model reads images too: its configuration is an object inside the other."""
    if config.section("text_config") is None:
        return _text_spec(config)
    text = ConfigReader(config.path, {**_SIZES, **config.values["text_config"]}, "text_config.")
    spec = _text_spec(text)
    text.refuse_unread()
    return spec


def _text_spec(config: ConfigReader) -> ModelSpec:
    spec = gemma.hf_spec(config, "gemma3", RopeDefaults(_GLOBAL_THETA), 131072, "full_attention")
    spec = gemma.hf_windows(config, spec, config.integer("sliding_window_pattern", _PERIOD, low=1))
    cap = gemma.hf_cap(config, "final_logit_softcapping", None)
    return replace(_two_ropes(spec, _local_theta(config)), logit_softcap=cap)


def _local_theta(config: ConfigReader) -> float:
    """The base of layers with a window; scaling belongs to the others alone."""
    theta = config.number("rope_local_base_freq", _LOCAL_THETA, low=1.0)
    newer = config.section("rope_parameters")
    local = newer and newer.section("sliding_attention")
    if not local:
        return theta
    local.choice("rope_type", "default", {"default": None})
    return local.number("rope_theta", theta, low=1.0)


def gguf_spec(meta: Metadata) -> ModelSpec:
    spec = gemma.gguf_spec(meta, "gemma3", wide_layers=62)
    window = meta.integer(".attention.sliding_window", 0)
    if window:
        spec = gemma.gguf_windows(meta, spec, window, _PERIOD)
    cap = meta.number(".final_logit_softcapping") if meta.has(".final_logit_softcapping") else None
    return replace(_two_ropes(spec, meta.number(".rope.freq_base_swa", _LOCAL_THETA)), logit_softcap=cap)


def _two_ropes(spec: ModelSpec, local_theta: float) -> ModelSpec:
    """Layers with a window take the second."""
    local = spec_of(base_frequencies(local_theta, spec.head_dim), "default")
    layers = tuple(replace(layer, rope=0 if layer.window is None else 1) for layer in spec.layer_specs)
    return replace(spec, ropes=(*spec.ropes, local), layer_specs=layers)


def tensors(spec: ModelSpec) -> list[TensorRule]:
    return gemma.tensors(spec, qk_norm=True)


def forward(ops: OpSet[V], spec: ModelSpec, num_tokens: int) -> V:
    return gemma.forward(ops, spec, num_tokens, qk_norm=True)


ARCHITECTURE = Architecture(
    name="gemma3",
    hf_classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    model_types=("gemma3_text", "gemma3"),
    gguf_names=("gemma3",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=forward,
)
