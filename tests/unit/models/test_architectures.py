"""What each architecture reads out of a configuration, and what is refused because nothing computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.models.config_reader import ConfigReader
from octavo.models.gguf import GgufTensor
from octavo.models.metadata import Metadata
from octavo.models.registry import ARCHITECTURES, gguf_model, hf_model, rules_of
from octavo.models.spec import ModelError, ModelSpec

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "vocab_size": 101,
}


def hf(name: str, **values: Any) -> ModelSpec:
    """The spec of a config.json; `...` leaves a key out."""
    merged = {"architectures": [name], **SIZES, **values}
    config = {key: value for key, value in merged.items() if value is not ...}
    return hf_model(ConfigReader(Path("config.json"), config))


def gguf(architecture: str, tensors: tuple[str, ...] = (), **values: Any) -> ModelSpec:
    """The spec of a GGUF file's metadata; keys with "__" for dots, within the architecture."""
    sizes = {
        "block_count": 4,
        "context_length": 4096,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    sizes |= {key.replace("__", "."): value for key, value in values.items()}

    class File:
        path = Path("m.gguf")
        metadata = {"general.architecture": architecture, **{f"{architecture}.{k}": v for k, v in sizes.items()}}
        tensors: dict[str, GgufTensor] = {}

    for name in ("token_embd.weight", *tensors):
        File.tensors[name] = GgufTensor(name, "F32", (101, 64), 0, 0)
    return gguf_model(Metadata(File()))  # type: ignore[arg-type]


def refused(call: Any, *args: Any, **named: Any) -> str:
    with pytest.raises(ModelError) as caught:
        call(*args, **named)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
    return str(caught.value)


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.window for layer in spec.layer_specs]


def rotated(spec: ModelSpec) -> list[bool]:
    return [layer.rope is not None for layer in spec.layer_specs]


@pytest.mark.parametrize(
    "name",
    [
        "BertModel",
        "MambaForCausalLM",
        "DeepseekV3ForCausalLM",
        "BitNetForCausalLM",
        "GPTNeoXForCausalLM",
        "LlavaForConditionalGeneration",
        "LlamaForSequenceClassification",
        "T5ForConditionalGeneration",
    ],
)
def test_a_model_of_another_kind_is_refused_with_what_works(name: str) -> None:
    message = refused(hf, name)
    assert name in message
    assert all(known in message for one in ARCHITECTURES for known in one.hf_classes)


@pytest.mark.parametrize("name", ["bert", "mamba", "deepseek2", "bitnet", "gptneox", "clip", "qwen2vl", "llama4", "t5"])
def test_a_gguf_of_another_kind_is_refused_with_what_works(name: str) -> None:
    message = refused(gguf, name)
    assert name in message and "llama" in message and "qwen3" in message


def test_a_model_type_stands_for_a_missing_class() -> None:
    assert hf("", architectures=..., model_type="qwen3").architecture == "qwen3"
    assert hf("", architectures=[], model_type="llama").architecture == "llama"
    assert hf("", architectures=["Unknown", "GraniteForCausalLM"]).architecture == "granite"
    assert "mamba" in refused(hf, "", architectures=None, model_type="mamba")
    assert "None" in refused(hf, "", architectures=None)


def test_llama_has_biases_where_the_configuration_says_so() -> None:
    plain = hf("LlamaForCausalLM")
    assert not (plain.qkv_bias or plain.o_bias or plain.mlp_bias or plain.tied) and plain.max_context == 2048
    biased = hf("LlamaForCausalLM", attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    assert biased.qkv_bias and biased.o_bias and biased.mlp_bias and biased.tied
    assert sum(rule.canonical.endswith("bias") for rule in rules_of(biased)) == 4 * 7


def test_kv_heads_may_be_null_or_absent() -> None:
    assert hf("LlamaForCausalLM", num_key_value_heads=None).kv_heads == 4
    assert hf("LlamaForCausalLM", num_key_value_heads=...).kv_heads == 4
    assert hf("MistralForCausalLM", num_key_value_heads=None).kv_heads == 4
    assert hf("MistralForCausalLM", num_key_value_heads=..., num_attention_heads=8).kv_heads == 8


def test_mistral_slides_on_every_layer_unless_the_window_is_null() -> None:
    assert windows(hf("MistralForCausalLM", sliding_window=7)) == [7] * 4
    assert windows(hf("MistralForCausalLM", sliding_window=None)) == [None] * 4
    assert windows(hf("MistralForCausalLM")) == [4096] * 4
    assert "layer_types" in refused(hf, "MistralForCausalLM", layer_types=["full_attention"] * 4)
    assert windows(gguf("llama", attention__sliding_window=7)) == [7] * 4
    assert windows(gguf("llama")) == [None] * 4


@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_slides_where_it_is_switched_on(name: str) -> None:
    assert windows(hf(name, sliding_window=8, max_window_layers=2)) == [None] * 4
    on = {"use_sliding_window": True, "sliding_window": 8}
    assert windows(hf(name, **on, max_window_layers=3)) == [None, None, None, 8]
    assert windows(hf(name, **on)) == [None] * 4
    types = ["sliding_attention", "full_attention"] * 2
    assert windows(hf(name, **on, layer_types=types)) == [8, None, 8, None]
    assert "sliding_window" in refused(hf, name, layer_types=types)
    assert "layer_types" in refused(hf, name, **on, layer_types=types[:3])
    assert "chunked" in refused(hf, name, **on, layer_types=["chunked_attention"] * 4)
    assert "sliding_window" in refused(gguf, name[:5].lower(), attention__sliding_window=8)


def test_qwen2_has_biases_on_q_k_and_v_alone() -> None:
    for spec in (hf("Qwen2ForCausalLM"), gguf("qwen2")):
        assert spec.qkv_bias and not spec.o_bias and not spec.mlp_bias
    assert "attention_bias" in refused(hf, "Qwen2ForCausalLM", attention_bias=True)


def test_qwen3_has_a_head_size_of_its_own() -> None:
    assert hf("Qwen3ForCausalLM").head_dim == 128 and hf("Qwen3ForCausalLM", head_dim=40).head_dim == 40
    shapes = {rule.canonical: rule.shape for rule in rules_of(hf("Qwen3ForCausalLM", head_dim=40))}
    assert shapes["layers.0.attn.q_norm.weight"] == shapes["layers.3.attn.k_norm.weight"] == (40,)


def test_smollm3_leaves_every_fourth_layer_unrotated_or_those_that_are_named() -> None:
    name = "SmolLM3ForCausalLM"
    assert rotated(hf(name)) == rotated(gguf("smollm3")) == [True, True, True, False]
    assert rotated(hf(name, no_rope_layer_interval=2)) == [True, False] * 2
    assert rotated(hf(name, no_rope_layers=[0, 1, 1, 0])) == [False, True, True, False]
    assert hf(name).tied and hf(name).ropes[0].inverse_frequencies[1] == pytest.approx(2e6 ** (-2 / 16))
    assert windows(hf(name, use_sliding_window=True, sliding_window=8)) == [None, None, None, 8]
    assert "no_rope_layers" in refused(hf, name, no_rope_layers=[1, 0])
    assert "no_rope_layers" in refused(hf, name, no_rope_layers="all")
    assert "no_rope_layers" in refused(hf, "LlamaForCausalLM", no_rope_layers=[1, 0, 1, 1])


def test_granite_scales_by_its_multipliers() -> None:
    scales = {"attention_multiplier": 0.5, "embedding_multiplier": 12.0, "residual_multiplier": 0.25}
    spec = hf("GraniteForCausalLM", **scales, logits_scaling=8.0)
    file = gguf("granite", attention__scale=0.5, embedding_scale=12.0, residual_scale=0.25, logit_scale=8.0)
    for one in (spec, file):
        assert (one.score_scale, one.embed_scale, one.residual_scale, one.logit_scale) == (0.5, 12.0, 0.25, 0.125)
    assert rotated(gguf("granite", rope__scaling__finetuned=False)) == [False] * 4
    assert "residual_multiplier" in refused(hf, "LlamaForCausalLM", residual_multiplier=0.5)
    assert "residual_scale" in refused(gguf, "llama", residual_scale=0.5)
    assert "logits_scaling" in refused(hf, "GraniteForCausalLM", logits_scaling=0)


def test_phi3_keeps_matrices_fused_and_rotates_part_of_a_head() -> None:
    spec = hf("Phi3ForCausalLM", partial_rotary_factor=0.75, sliding_window=9)
    assert windows(spec) == [9] * 4 and len(spec.ropes[0].inverse_frequencies) == 6
    shapes = {rule.canonical: rule.shape for rule in rules_of(spec)}
    assert shapes["layers.1.attn.qkv.weight"] == (128, 64) and shapes["layers.1.mlp.gate_up.weight"] == (192, 64)
    assert windows(hf("Phi3ForCausalLM")) == [None] * 4
    file = gguf("phi3", rope__dimension_count=12, attention__sliding_window=9)
    assert windows(file) == [9] * 4 and len(file.ropes[0].inverse_frequencies) == 6
    assert windows(gguf("phi3", attention__sliding_window=0)) == [None] * 4
    assert windows(gguf("phi3", block_count=32)) == [2047] * 32, "files from before the key"
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    long = hf("Phi3ForCausalLM", rope_scaling={"type": "yarn", **factors}, max_position_embeddings=8192)
    assert long.ropes[0].kind == "longrope" and long.ropes[0].inverse_frequencies[0] == 0.5
    assert long.at_context(4096).ropes[0].inverse_frequencies[0] == 1.0


def test_olmo2_norms_whole_rows_and_what_comes_out() -> None:
    shapes = {rule.canonical: rule.shape for rule in rules_of(hf("Olmo2ForCausalLM"))}
    assert shapes["layers.0.attn.q_norm.weight"] == (64,) and shapes["layers.0.attn.k_norm.weight"] == (32,)
    assert "layers.0.attn_post_norm.weight" in shapes and "layers.0.attn_norm.weight" not in shapes
    assert "sliding_window" in refused(gguf, "olmo2", attention__sliding_window=4096), "an OLMo 3"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_act": "relu"}, ["hidden_act 'relu'", "silu"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "4096"]),
        ({"vocab_size": 1 << 40}, ["vocab_size"]),
        ({"intermediate_size": -1}, ["intermediate_size"]),
        ({"head_dim": 7}, ["7", "KV heads"]),
        ({"hidden_size": 3}, ["head_dim is 0"]),
        ({"num_key_value_heads": 3}, ["3 KV heads"]),
        ({"tie_word_embeddings": 1}, ["tie_word_embeddings"]),
        ({"alibi": True}, ["alibi"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.9}},
            ["attn_factor", "attention_factor"],
        ),
        ({"num_local_experts": 8}, ["num_local_experts"]),
        ({"kv_lora_rank": 512}, ["kv_lora_rank"]),
        ({"final_logit_softcapping": 30.0}, ["final_logit_softcapping"]),
        ({"use_bias": True}, ["use_bias"]),
    ],
)
def test_settings_that_nothing_computes_are_named(values: dict[str, Any], words: list[str]) -> None:
    message = refused(hf, "LlamaForCausalLM", **values)
    assert all(word in message for word in ["config.json", *words]), message


@pytest.mark.parametrize(
    "neutral",
    [
        {"attention_dropout": 0.1, "pretraining_tp": 2, "sliding_window": None, "num_local_experts": 0},
        {"layer_types": ["full_attention"] * 4},
        {"layer_types": ["full_attention"] * 4, "sliding_window": 8, "sliding_window_pattern": 2},
        {"use_sliding_window": False, "sliding_window": 8},
        {"sliding_window_pattern": 6},
        {"no_rope_layers": [1, 1, 1, 1]},
        {"num_experts": 0, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ],
)
def test_settings_that_change_nothing_are_taken(neutral: dict[str, Any]) -> None:
    assert hf("LlamaForCausalLM", **neutral) == hf("LlamaForCausalLM")


def test_full_attention_beside_a_window_that_holds_is_refused() -> None:
    message = refused(hf, "MistralForCausalLM", layer_types=["full_attention"] * 4, sliding_window=7)
    assert "layer_types" in message and message.endswith("it must be absent")
    assert "layer_types" in refused(hf, "LlamaForCausalLM", layer_types=["sliding_attention"] * 4)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"attention__head_count": 0}, ["llama.attention.head_count"]),
        ({"attention__head_count_kv": np.array([2, 2, 1, 2])}, ["llama.attention.head_count_kv"]),
        ({"attention__value_length": 8}, ["different lengths"]),
        ({"rope__dimension_count": 8}, ["llama.rope.dimension_count", "16"]),
        ({"rope__scaling__type": "ntk", "rope__scaling__factor": 2.0}, ["ntk"]),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0, "rope__scaling__attn_factor": 1.5}, ["yarn"]),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0, "rope__scaling__yarn_attn_factor": 0.9},
            ["llama.rope.scaling.yarn_attn_factor"],
        ),
        ({"rope__freq_base": 0.5}, ["0.5"]),
        ({"attention__kv_lora_rank": 512}, ["llama.attention.kv_lora_rank"]),
        ({"final_logit_softcapping": 30.0}, ["llama.final_logit_softcapping"]),
        ({"embedding_length": 10**9}, ["llama.embedding_length"]),
    ],
)
def test_metadata_that_nothing_computes_are_named(values: dict[str, Any], words: list[str]) -> None:
    message = refused(gguf, "llama", **values)
    assert all(word in message for word in ["m.gguf", *words]), message


def test_a_scaled_model_serves_the_context_that_its_scaling_is_meant_for() -> None:
    """Qwen's own advice for long texts adds yarn to config.json and leaves the other number as it was."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    qwen = hf("Qwen2ForCausalLM", max_position_embeddings=32768, rope_scaling=scaling)
    assert qwen.max_context == 131072 and qwen.at_context(1000) == qwen
    assert hf("Qwen2ForCausalLM", max_position_embeddings=200_000, rope_scaling=scaling).max_context == 200_000
    file = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    assert gguf("qwen2", **file).max_context == 4 * 4096
    dynamic = hf("LlamaForCausalLM", rope_scaling={"type": "dynamic", "factor": 2.0})
    assert (
        dynamic.max_context == 4096
        and dynamic.at_context(2048).ropes[0].inverse_frequencies[1] > (dynamic.ropes[0].inverse_frequencies[1])
    )


def test_gguf_heads_alike_on_all_layers_are_one_number() -> None:
    assert gguf("qwen3", attention__head_count_kv=np.array([2] * 4)) == gguf("qwen3")
    assert gguf("qwen3").tied and not gguf("qwen3", ("output.weight",)).tied


def test_gguf_scaling_is_linear_where_only_a_factor_is_named() -> None:
    plain, linear = gguf("qwen2"), gguf("qwen2", rope__scaling__factor=4.0)
    assert linear.ropes[0].inverse_frequencies[0] == plain.ropes[0].inverse_frequencies[0] / 4
    yarn = gguf(
        "qwen2", rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=512
    )
    assert yarn.ropes[0].kind == "yarn" and yarn.ropes[0].scale == pytest.approx(0.1 * np.log(4) + 1)


PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 3.2 1B": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256,
    },
    "Mistral Nemo": {
        "architectures": ["MistralForCausalLM"],
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 14336, "max_position_embeddings": 131072, "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
        "vocab_size": 131072,
    },
    "Qwen2.5 7B": {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
        "max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": False, "use_mrope": False, "use_sliding_window": False, "vocab_size": 152064,
    },
    "Qwen3 0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Phi-4 mini": {
        "architectures": ["Phi3ForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.0, "embd_pdrop": 0.0, "full_attn_mod": 1, "hidden_act": "silu",
        "hidden_size": 3072, "intermediate_size": 8192, "lm_head_bias": False, "max_position_embeddings": 131072,
        "mlp_bias": False, "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
        "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064,
    },
    "Granite 3.1 2B": {
        "architectures": ["GraniteForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.1, "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "logits_scaling": 8.0,
        "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 5000000.0, "tie_word_embeddings": True, "vocab_size": 49155,
    },
    "SmolLM3 3B": {
        "architectures": ["SmolLM3ForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 11008, "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536,
        "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "use_sliding_window": False, "vocab_size": 128256,
    },
    "OLMo 2 1B": {
        "architectures": ["Olmo2ForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 4096, "num_attention_heads": 16, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
        "tie_word_embeddings": False, "vocab_size": 100352,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_configurations_as_they_are_published_are_read(name: str) -> None:
    config = PUBLISHED[name]
    spec = hf_model(ConfigReader(Path("config.json"), config))
    assert spec.layers == config["num_hidden_layers"] and spec.kv_heads == config["num_key_value_heads"]
    assert spec.max_context == config["max_position_embeddings"]
    assert spec.tied == config.get("tie_word_embeddings", True)
    assert rotated(spec) == [bool(one) for one in config.get("no_rope_layers", [1] * spec.layers)]
    assert len(spec.ropes[0].inverse_frequencies) == spec.head_dim * config.get("partial_rotary_factor", 1) // 2
    assert set(windows(spec)) == ({config["sliding_window"]} if name.startswith("Phi") else {None})
