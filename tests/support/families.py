"""The matrix of tiny models: every architecture, with the sizes, rotations, windows and scales that go wrong."""

from __future__ import annotations

from typing import Any

from tests.support.oracle import Case

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _rope(case: Case, theta: float = 10000.0, **parameters: Any) -> Case:
    return case.with_(rope_parameters={"rope_theta": theta, **parameters})


def _longrope(head_dim: int, original: int) -> dict[str, Any]:
    """Divisors that differ from one another, short and long."""
    half = head_dim // 2
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.05 * i for i in range(half)],
        "long_factor": [1.0 + 0.9 * i for i in range(half)],
        "original_max_position_embeddings": original,
    }


LLAMA = Case("Llama")
MISTRAL = Case("Mistral")
QWEN2 = Case("Qwen2")
QWEN3 = Case("Qwen3", {"head_dim": 16})
PHI3 = Case("Phi3", {"pad_token_id": 0, "original_max_position_embeddings": 256})
GRANITE = Case(
    "Granite",
    {"attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.22, "logits_scaling": 0.7},
)
SMOLLM3 = Case("SmolLM3", {"num_hidden_layers": 4})
OLMO2 = Case("Olmo2")
OLMO3 = Case("Olmo3", {"num_hidden_layers": 4, "sliding_window": 8})
GEMMA2 = Case(
    "Gemma2",
    {
        "head_dim": 16,
        "num_hidden_layers": 3,
        "sliding_window": 8,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
)
GEMMA3 = Case(
    "Gemma3",
    {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
    },
    "Gemma3TextConfig",
)
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 5}
MIXTRAL = Case("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2})
QWEN2_MOE = Case("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 40})
QWEN3_MOE = Case("Qwen3Moe", {**EXPERTS, "head_dim": 16})

WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 4, "max_window_layers": 2}

FAMILIES: dict[str, dict[str, Case]] = {
    "llama": {
        "plain": LLAMA,
        "head 80": LLAMA.with_(hidden_size=160, num_attention_heads=2, num_key_value_heads=1, head_dim=80),
        "head 96": LLAMA.with_(hidden_size=64, num_attention_heads=2, head_dim=96, tie_word_embeddings=True),
        "head 40": LLAMA.with_(hidden_size=120, num_attention_heads=3, num_key_value_heads=1),
        "head 256": LLAMA.with_(num_attention_heads=2, num_key_value_heads=1, head_dim=256),
        "head 32, hidden 100": LLAMA.with_(hidden_size=100, head_dim=32, tie_word_embeddings=True),
        "biases": LLAMA.with_(attention_bias=True, mlp_bias=True),
        "linear": _rope(LLAMA, rope_type="linear", factor=4.0),
        "dynamic": _rope(
            Case("Llama", {"max_position_embeddings": 64}, context=128), 500.0, rope_type="dynamic", factor=2.0
        ),
        "llama3": _rope(LLAMA, 500000.0, **LLAMA3),
        "yarn": _rope(LLAMA, **YARN),
        "yarn, betas": _rope(LLAMA, **YARN, beta_fast=16.0, beta_slow=2.0, attention_factor=0.9, truncate=False),
    },
    "mistral": {
        "plain": MISTRAL.with_(sliding_window=None, head_dim=20),
        "window 8": MISTRAL.with_(sliding_window=8),
        "window 33": MISTRAL.with_(sliding_window=33, num_key_value_heads=1),
    },
    "qwen2": {
        "plain": QWEN2,
        "tied": QWEN2.with_(tie_word_embeddings=True, num_key_value_heads=1),
        "window 8": QWEN2.with_(**WINDOWED),
        "yarn": _rope(QWEN2, 1000000.0, **YARN),
    },
    "qwen3": {
        "plain": QWEN3,
        "tied": QWEN3.with_(tie_word_embeddings=True, head_dim=40, num_key_value_heads=1),
        "window 8": QWEN3.with_(**WINDOWED),
        "biases": QWEN3.with_(attention_bias=True),
    },
    "phi3": {
        "plain": PHI3,
        "partial": _rope(PHI3.with_(hidden_size=64), rope_type="default", partial_rotary_factor=0.75),
        "window 8": PHI3.with_(sliding_window=8),
        "longrope, short": _rope(
            Case("Phi3", {"pad_token_id": 0, "original_max_position_embeddings": 128}, context=128),
            **_longrope(12, 128),
        ),
        "longrope, long": _rope(
            Case("Phi3", {"pad_token_id": 0, "original_max_position_embeddings": 64}, context=128), **_longrope(12, 64)
        ),
    },
    "granite": {
        "plain": GRANITE,
        "tied, biases": GRANITE.with_(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    },
    "smollm3": {
        "plain": SMOLLM3,
        "layers named": SMOLLM3.with_(no_rope_layers=[1, 0, 1, 0]),
        "yarn": _rope(SMOLLM3, 2000000.0, **YARN),
        "window 8": SMOLLM3.with_(
            use_sliding_window=True,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        ),
    },
    "olmo2": {"plain": OLMO2, "one KV head": OLMO2.with_(num_key_value_heads=1)},
    "olmo3": {
        "plain": OLMO3,
        "yarn": OLMO3.with_(
            rope_parameters={
                "full_attention": {**YARN, "rope_theta": 500000.0, "attention_factor": 1.2},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            }
        ),
        "layers named": OLMO3.with_(
            num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], num_key_value_heads=1
        ),
    },
    "gemma2": {
        "plain": GEMMA2,
        "one cap": GEMMA2.with_(attn_logit_softcapping=None),
        "no caps": GEMMA2.with_(attn_logit_softcapping=None, final_logit_softcapping=None),
        "scale": GEMMA2.with_(query_pre_attn_scalar=12, num_key_value_heads=1),
    },
    "gemma3": {
        "plain": GEMMA3,
        "head 256": GEMMA3.with_(head_dim=256, num_attention_heads=2, num_key_value_heads=1, query_pre_attn_scalar=256),
        "linear": GEMMA3.with_(
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        ),
        "cap": GEMMA3.with_(final_logit_softcapping=3.0),
        "seven layers": GEMMA3.with_(num_hidden_layers=7, sliding_window_pattern=6),
    },
    "mixtral": {
        "plain": MIXTRAL,
        "window 8": MIXTRAL.with_(sliding_window=8),
        "three of five": MIXTRAL.with_(num_experts_per_tok=3, tie_word_embeddings=True),
    },
    "qwen2_moe": {
        "plain": QWEN2_MOE,
        "renormalised": QWEN2_MOE.with_(norm_topk_prob=True),
        "some dense": QWEN2_MOE.with_(num_hidden_layers=3, mlp_only_layers=[1]),
    },
    "qwen3_moe": {
        "plain": QWEN3_MOE.with_(norm_topk_prob=True),
        "not renormalised": QWEN3_MOE,
        "some dense": QWEN3_MOE.with_(num_hidden_layers=3, decoder_sparse_step=2),
    },
}

WINDOWS = [
    ("mistral", "window 8"),
    ("mistral", "window 33"),
    ("qwen2", "window 8"),
    ("phi3", "window 8"),
    ("smollm3", "window 8"),
    ("olmo3", "yarn"),
    ("mixtral", "window 8"),
    ("gemma2", "plain"),
    ("gemma3", "plain"),
]

NOT_IN_GGUF = {"dynamic", "layers named", "yarn, betas", "some dense", "scale", "one cap", "no caps"}
"""What no converter writes."""


def in_gguf(family: str, name: str) -> bool:
    """Whether a GGUF file can say all of the case: only Gemma's and Phi-3's have windows, and OLMo 3's are refused."""
    windowed = name.startswith("window") and family not in ("gemma2", "gemma3", "phi3")
    return name not in NOT_IN_GGUF and not windowed and family != "olmo3"
