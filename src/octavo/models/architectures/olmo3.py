"""OLMo 3: OLMo 2 with a window on three layers of four; only the layers without one have scaled rotary embeddings.

GGUF files call it olmo2 and do not say how the two embeddings differ: they are refused there, by their window.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.architectures import decoder, olmo2
from octavo.models.config_reader import ConfigReader
from octavo.models.rope import RopeDefaults, hf_unscaled_rope
from octavo.models.spec import ModelSpec

PERIOD, WINDOW = 4, 4096
FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULTS = decoder.HFDefaults(norm_eps=1e-5, rope=RopeDefaults(theta=5e5), rope_layers=FULL)


def hf_spec(config: ConfigReader) -> ModelSpec:
    bias = config.flag("attention_bias")
    spec = replace(decoder.hf_decoder(config, "olmo3", DEFAULTS), qkv_bias=bias, o_bias=bias)
    sliding = [(i + 1) % PERIOD != 0 for i in range(spec.layers)]
    windows = decoder.hf_windows(config, spec.layers, decoder.hf_window(config, WINDOW), sliding)
    spec = decoder.with_windows(spec, windows)
    local = hf_unscaled_rope(config, spec.head_dim, DEFAULTS.rope, SLIDING)
    layers = tuple(replace(layer, rope=0 if layer.window is None else 1) for layer in spec.layer_specs)
    return replace(spec, ropes=(*spec.ropes, local), layer_specs=layers)


ARCHITECTURE = Architecture(
    name="olmo3",
    hf_classes=("Olmo3ForCausalLM",),
    model_types=("olmo3",),
    gguf_names=(),
    hf_spec=hf_spec,
    gguf_spec=None,
    tensors=olmo2.tensors,
    forward=olmo2.forward,
)
