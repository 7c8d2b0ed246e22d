"""Mistral: a Llama whose layers all see a window, or none of them. GGUF files call it llama."""

from __future__ import annotations

from octavo.models.architecture import Architecture
from octavo.models.architectures import decoder, llama
from octavo.models.config_reader import ConfigReader
from octavo.models.spec import ModelSpec

WINDOW = 4096
"""Of a configuration that does not speak of it; null says that there is none."""


def hf_spec(config: ConfigReader) -> ModelSpec:
    spec = decoder.hf_decoder(config, "mistral", decoder.HFDefaults(kv_heads=8, max_context=1 << 17))
    return decoder.with_windows(spec, [decoder.hf_window(config, WINDOW)] * spec.layers)


ARCHITECTURE = Architecture(
    name="mistral",
    hf_classes=("MistralForCausalLM",),
    model_types=("mistral",),
    gguf_names=(),
    hf_spec=hf_spec,
    gguf_spec=None,
    tensors=llama.tensors,
    forward=llama.forward,
)
