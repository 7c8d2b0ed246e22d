"""What a format cannot say of a model, in the words of the source's files.

Asked before a byte is written for what is known to be unsayable, and afterwards for whatever the written files turned
out to say otherwise. Owns nothing; off switch: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from octavo.models.names import Naming
from octavo.models.registry import architecture_of
from octavo.models.rope import Dynamic
from octavo.models.spec import ModelError, ModelSpec

_GGUF_WINDOWS = ("gemma2", "gemma3", "phi3")
_WINDOWS = "windows (sliding_window, layer_types)"
_DENSE = "dense layers between those with experts (mlp_only_layers, decoder_sparse_step)"
_FIELDS = {
    "act": "activation (hidden_act)",
    "attn_scale": "scale of scores (query_pre_attn_scalar)",
    "attn_softcap": "cap of scores (attn_logit_softcapping)",
    "layer_specs.moe": _DENSE,
    "layer_specs.rope": "layers without rotation (no_rope_layers)",
    "layer_specs.window": _WINDOWS,
    "logit_softcap": "cap of logits (final_logit_softcapping)",
    "max_context": "context (max_position_embeddings)",
    "mlp_bias": "biases of the MLP (mlp_bias)",
    "moe": "settings of experts",
    "o_bias": "bias of the attention's output (attention_bias)",
    "qkv_bias": "biases of q, k and v (attention_bias)",
    "ropes": "rotary embedding (rope_scaling, rope_theta)",
    "tied": "head (tie_word_embeddings)",
}
"""Of a spec, as users know them; others go by their own name."""


def in_words_of(spec: ModelSpec, naming: Naming, source: Path, crosses: bool) -> ModelSpec:
    """The spec under the name that the format has for it: GGUF calls a Mistral without windows a llama.

    `crosses`: the source is of the other format. ModelError names what the new one cannot say.
    """
    windowed = any(layer.window is not None for layer in spec.layer_specs)
    if naming == "hf":
        return replace(spec, architecture="mistral") if windowed and spec.architecture == "llama" else spec
    if not crosses:
        return spec
    if windowed and spec.architecture not in _GGUF_WINDOWS:
        raise unsaid(naming, source, [_WINDOWS])
    if spec.moe is not None and not all(layer.moe for layer in spec.layer_specs):
        raise unsaid(naming, source, [_DENSE])
    if any(isinstance(rope.scaling, Dynamic) for rope in spec.ropes):
        raise unsaid(naming, source, ["dynamic scaling (rope_scaling)"])
    if architecture_of(spec).gguf_names:
        return spec
    if spec.architecture == "mistral":
        return replace(spec, architecture="llama")
    raise unsaid(naming, source, [f"architecture {spec.architecture}"])


def named(differences: Iterable[str]) -> list[str]:
    """Fields that differ, as users know them."""
    words = (_FIELDS.get(name) or _FIELDS.get(name.split(".")[0], name) for name in differences)
    return list(dict.fromkeys(words))


def unsaid(naming: Naming, source: Path, what: Iterable[str]) -> ModelError:
    """The refusal."""
    return ModelError(f"{_formats(naming)} have no words for the {', '.join(what)} of {source}; {_way_out(naming)}")


def unreadable(naming: Naming, source: Path, path: Path, error: ModelError) -> ModelError:
    """The refusal where the written files cannot be opened; the user never sees them, and so not their names."""
    why = str(error).replace(f"{path}: ", "").replace(f"{path.name}: ", "").replace(str(path), path.name)
    return ModelError(f"{_formats(naming)} have no words for all of {source} ({why}); {_way_out(naming)}")


def _formats(naming: Naming) -> str:
    return "GGUF files" if naming == "gguf" else "safetensors directories"


def _way_out(naming: Naming) -> str:
    return "a directory works: --to safetensors" if naming == "gguf" else "a GGUF file works: --to gguf"
