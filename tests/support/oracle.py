"""Tiny random models of any architecture, made and computed by Hugging Face transformers: what Octavo must equal.

`build(Case)` draws a model, `save` writes it as transformers does with a small tokeniser beside it, `older_spelling`
rewrites config.json as releases before 5 wrote it, `logits` computes every position in float32 with eager attention.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.types import Pooling

VOCAB = 101


@dataclass(frozen=True)
class Case:
    """One configuration of one architecture."""

    family: str
    """transformers' prefix of its classes: "Llama" for LlamaConfig and LlamaForCausalLM."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    config_class: str = ""
    context: int | None = None
    """The engine's longest request, where RoPE's frequencies depend on it: HF is set to what it gives there."""

    def with_(self, **settings: Any) -> Case:
        return replace(self, settings={**self.settings, **settings})


def config_of(case: Case) -> Any:
    """Small sizes for all that the case leaves open."""
    defaults = {
        "hidden_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 72,
        "num_hidden_layers": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "attention_dropout": 0.0,
    }
    made = getattr(transformers, case.config_class or f"{case.family}Config")(**{**defaults, **case.settings})
    made._attn_implementation = "eager"
    return made


def build(case: Case, seed: int) -> Any:
    """A model whose logits are neither flat nor one-hot, with every gain and bias drawn too."""
    torch.manual_seed(seed)
    model = getattr(transformers, f"{case.family}ForCausalLM")(config_of(case)).eval()
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
            elif "norm" in name:
                # Gemma stores the gain less one, and starts at zero.
                parameter.normal_(float(parameter.flatten()[0]), 0.2)
            elif parameter is embedding:
                parameter.normal_(0.0, 1.5 * parameter.shape[1] ** -0.5 if model.config.tie_word_embeddings else 1.0)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    if case.context is not None:
        fix_rope(model, case.context)
    return model


def fix_rope(model: Any, context: int) -> None:
    """Frequencies that depend on the length become those of `context` positions, whatever the prompt's length."""
    rotary = model.model.rotary_emb
    kind = rotary.rope_type
    assert kind in ("dynamic", "longrope"), kind
    frequencies, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[kind](model.config, seq_len=context)
    rotary.register_buffer("inv_freq", frequencies, persistent=False)
    rotary.rope_type = "default"


def logits(model: Any, tokens: Sequence[int]) -> np.ndarray:
    """[positions, vocabulary]."""
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([list(tokens)]), use_cache=False).logits[0].float().numpy()
    return found


def states(model: Any, tokens: Sequence[int]) -> np.ndarray:
    """[positions, hidden]: what the last norm gives."""
    with torch.no_grad():
        found: np.ndarray = model.model(torch.tensor([list(tokens)]), use_cache=False).last_hidden_state[0].numpy()
    return found


def pooled(rows: np.ndarray, pooling: Pooling) -> np.ndarray:
    return rows.astype(np.float64).mean(axis=0) if pooling is Pooling.MEAN else rows[-1]


def decided(model: Any, tokens: Sequence[int], margin: float = 1e-5) -> bool:
    """Whether every router prefers the last expert that it takes by more than sums in another order can turn."""
    top_k: int | None = getattr(model.config, "num_experts_per_tok", None)
    if top_k is None:
        return True
    with torch.no_grad():
        found = model(torch.tensor([list(tokens)]), use_cache=False, output_router_logits=True).router_logits
    for router in found:
        p = torch.softmax(router, dim=-1).sort(dim=-1, descending=True).values
        if top_k < p.shape[1] and float((p[:, top_k - 1] - p[:, top_k]).min()) < margin:
            return False
    return True


def save(model: Any, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """The directory that `save_pretrained` writes, and a tokeniser of as many words as the vocabulary has rows."""
    model.to(dtype).save_pretrained(folder, safe_serialization=True)
    write_tokenizer(folder, model.config.vocab_size)


def write_tokenizer(folder: Path, vocab: int) -> None:
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(vocab)}, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "w2", "bos_token": "w1"}))


def older_spelling(folder: Path) -> None:
    """config.json as transformers 4 wrote it: `rope_theta` at the top, `rope_scaling` with `type`, `torch_dtype`."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["torch_dtype"] = config.pop("dtype")
    rope = config.pop("rope_parameters")
    if config["model_type"] == "gemma3_text":
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern", 6)
    rope = rope.get("full_attention", rope)
    if config["model_type"].startswith("gemma"):
        config.pop("layer_types", None)
    config["rope_theta"] = rope.pop("rope_theta")
    partial = rope.pop("partial_rotary_factor", None)
    if partial is not None:
        config["partial_rotary_factor"] = partial
    kind = rope.pop("rope_type")
    if kind == "longrope":
        config["original_max_position_embeddings"] = rope.pop("original_max_position_embeddings")
    # Llama 3 came with the newer key of the two, everything before it with the older.
    named = {"rope_type": kind} if kind == "llama3" else {"type": kind}
    config["rope_scaling"] = None if kind == "default" else {**rope, **named}
    path.write_text(json.dumps(config))
