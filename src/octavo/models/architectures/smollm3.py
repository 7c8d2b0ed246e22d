"""SmolLM3: a Llama in which every fourth layer is not rotated; layers may have windows."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.architectures import decoder, llama
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.rope import RopeDefaults
from octavo.models.spec import LayerSpec, ModelSpec

INTERVAL = 4
"""GGUF files do not say it: their reader knows."""


def hf_spec(config: ConfigReader) -> ModelSpec:
    defaults = decoder.HFDefaults(tied=True, kv_heads=4, max_context=32768, rope=RopeDefaults(theta=2e6))
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    spec = replace(decoder.hf_decoder(config, "smollm3", defaults), qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
    interval = config.integer("no_rope_layer_interval", INTERVAL, low=1)
    rotated = config.items("no_rope_layers", spec.layers, int, "numbers, 1 for a layer that is rotated")
    if rotated is None:
        rotated = every(spec.layers, interval)
    spec = replace(spec, layer_specs=layer_specs(rotated))
    window = decoder.hf_window(config, None)
    window = window if config.flag("use_sliding_window") else None
    return decoder.with_windows(
        spec, decoder.hf_windows(config, spec.layers, window, [window is not None and not one for one in rotated])
    )


def every(layers: int, interval: int) -> tuple[int, ...]:
    """1 for each layer that is rotated: all but each `interval`-th."""
    return tuple(int((i + 1) % interval != 0) for i in range(layers))


def layer_specs(rotated: tuple[int, ...]) -> tuple[LayerSpec, ...]:
    return tuple(LayerSpec(rope=0 if one else None) for one in rotated)


def gguf_spec(meta: Metadata) -> ModelSpec:
    spec = llama.gguf_decoder(meta, "smollm3")
    return replace(spec, layer_specs=layer_specs(every(spec.layers, INTERVAL)))


ARCHITECTURE = Architecture(
    name="smollm3",
    hf_classes=("SmolLM3ForCausalLM",),
    model_types=("smollm3",),
    gguf_names=("smollm3",),
    hf_spec=hf_spec,
    gguf_spec=gguf_spec,
    tensors=llama.tensors,
    forward=llama.forward,
)
