"""Qwen2 and Qwen2.5: a Llama with biases on q, k and v, and a window on the last layers where it is switched on."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture, TensorRule
from octavo.models.architectures import decoder, llama
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelSpec


def hf_windowed(config: ConfigReader, spec: ModelSpec) -> ModelSpec:
    """Layers from max_window_layers on slide, where use_sliding_window says so (Qwen2 and Qwen3)."""
    first = config.integer("max_window_layers", 28)
    window = decoder.hf_window(config, 4096)
    window = window if config.flag("use_sliding_window") else None
    sliding = [window is not None and i >= first for i in range(spec.layers)]
    return decoder.with_windows(spec, decoder.hf_windows(config, spec.layers, window, sliding))


def hf_spec(config: ConfigReader) -> ModelSpec:
    defaults = decoder.HFDefaults(kv_heads=32, max_context=32768)
    return hf_windowed(config, replace(decoder.hf_decoder(config, "qwen2", defaults), qkv_bias=True))


def gguf_spec(meta: Metadata) -> ModelSpec:
    return replace(decoder.gguf_decoder(meta, "qwen2"), qkv_bias=True)


def tensors(spec: ModelSpec) -> list[TensorRule]:
    return decoder.decoder_rules(spec)


ARCHITECTURE = Architecture(
    name="qwen2",
    hf_classes=("Qwen2ForCausalLM",),
    model_types=("qwen2",),
    gguf_names=("qwen2",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=tensors,
    forward=llama.forward,
)
