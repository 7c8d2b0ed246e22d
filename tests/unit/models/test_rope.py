"""Rotary embeddings: frequencies of every kind and spelling equal transformers'; wrong numbers are named."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.execution.rope import rope_tables
from octavo.models.config_reader import ConfigReader
from octavo.models.rope import RopeDefaults, hf_rope, note
from octavo.models.spec import LayerSpec, ModelError, ModelSpec, RopeSpec

HEAD_DIMS = (8, 40, 64, 80, 96, 128, 256)
ORIGINALS = (64, 512, 4096, 8192)


@pytest.fixture
def rng() -> random.Random:
    """Drawn anew; the seed is printed where the test fails."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def drawn(kind: str, rng: random.Random) -> tuple[int, int, dict[str, Any]]:
    """(head size, model's context, rope_parameters) of a configuration of one kind."""
    head_dim, original = rng.choice(HEAD_DIMS), rng.choice(ORIGINALS)
    partial = rng.choice((1.0, 1.0, 0.75, 0.5))
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": rng.choice((500.0, 1e4, 5e5, 1e6, 2.5e5))}
    if partial != 1.0:
        rope["partial_rotary_factor"] = partial
    factor = rng.choice((2.0, 4.0, 8.0, 3.5))
    if kind != "default":
        rope["factor"] = factor
    if kind in ("llama3", "yarn", "longrope"):
        rope["original_max_position_embeddings"] = original
    if kind == "llama3":
        rope |= {"low_freq_factor": rng.choice((1.0, 0.5)), "high_freq_factor": rng.choice((4.0, 2.0))}
    if kind == "yarn":
        rope |= rng.choice(({}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"beta_fast": 48, "beta_slow": 1}))
        rope |= rng.choice(({}, {"truncate": False}, {"truncate": True}))
        rope |= rng.choice(({}, {"attention_factor": 0.8}, {"mscale": 1.0, "mscale_all_dim": 0.7}, {"mscale": 0.9}))
    if kind == "longrope":
        half = int(head_dim * partial) // 2
        rope |= {f"{name}_factor": [rng.uniform(1, 60) for _ in range(half)] for name in ("short", "long")}
        if rng.random() < 0.5:
            del rope["factor"]
        if rng.random() < 0.5:
            rope["attention_factor"] = 1.1
    return head_dim, int(original * factor) if kind != "dynamic" else original, rope


def older(rope: dict[str, Any], kind_key: str) -> dict[str, Any]:
    """As transformers 4 wrote the same."""
    inner = dict(rope)
    top = {key: inner.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in inner}
    inner[kind_key] = inner.pop("rope_type")
    return {**top, "rope_scaling": inner}


def theirs(head_dim: int, context: int, rope: dict[str, Any], served: int | None) -> tuple[np.ndarray, float]:
    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=context,
        rope_parameters=dict(rope),
    )
    if rope["rope_type"] == "default":
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
        return rotary.inv_freq.numpy()[: dim // 2], rotary.attention_scaling
    frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=served)
    return frequencies.numpy(), scale


def ours(config: dict[str, Any], head_dim: int, context: int, served: int | None = None) -> RopeSpec:
    rope = hf_rope(ConfigReader(Path("config.json"), config), head_dim, context)
    return rope.scaling.at(served) if rope.scaling is not None and served is not None else rope


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn", "longrope"])
def test_frequencies_equal_transformers_in_every_spelling(kind: str, rng: random.Random) -> None:
    for _ in range(30):
        head_dim, context, rope = drawn(kind, rng)
        if kind == "default" and "partial_rotary_factor" in rope:
            continue  # this class of transformers rotates whole heads
        served = rng.choice((context // 8, context, context * 2)) if kind in ("dynamic", "longrope") else None
        expected, scale = theirs(head_dim, context, rope, served)
        for config in ({"rope_parameters": rope}, older(rope, "type"), older(rope, "rope_type")):
            got = ours(config, head_dim, context, served)
            assert got.kind == kind
            assert got.scale == pytest.approx(scale, rel=1e-6)
            np.testing.assert_allclose(got.inverse_frequencies, expected, rtol=5e-6, err_msg=str(config))


def test_kinds_by_other_names_and_none_at_all() -> None:
    plain = ours({}, 64, 512)
    assert plain.inverse_frequencies[0] == 1.0 and len(plain.inverse_frequencies) == 32 and plain.kind == "default"
    for config in (
        {"rope_scaling": None, "rope_theta": 10000},
        {"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_scaling": {"type": "linear", "factor": 1.0}},
        {"rotary_pct": 1.0},
    ):
        assert ours(config, 64, 512) == plain
    factors = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_max_position_embeddings": 256}
    named = [ours({"rope_scaling": {"type": kind, **factors}}, 64, 512) for kind in ("su", "longrope")]
    assert named[0] == named[1] and named[0].kind == "longrope"
    assert ours({"partial_rotary_factor": 0.5}, 64, 512).inverse_frequencies == ours({}, 32, 512).inverse_frequencies


def test_layers_of_different_types_have_their_own() -> None:
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = ConfigReader(Path("config.json"), {"rope_parameters": parameters})
    full, sliding = (hf_rope(config, 32, 512, layer_type=f"{kind}_attention") for kind in ("full", "sliding"))
    assert sliding == ours({"rope_theta": 1e4}, 32, 512)
    assert full == ours({"rope_theta": 1e6, "rope_scaling": parameters["full_attention"]}, 32, 512)
    with pytest.raises(ModelError, match=r"rope_parameters\.full_attention"):
        hf_rope(config, 32, 512)


def test_a_context_of_pretraining_at_the_top_counts_and_has_a_default() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    inner = {"rope_scaling": {"type": "longrope", **factors, "original_max_position_embeddings": 100}}
    both = {**inner, "original_max_position_embeddings": 300}
    reader = ConfigReader(Path("config.json"), inner)
    for rope, original in (
        (ours(inner, 8, 1000), 100),
        (ours(both, 8, 1000), 300),
        (hf_rope(reader, 8, 1000, RopeDefaults(original=200)), 200),
    ):
        assert rope.scaling is not None
        assert rope.scaling.at(original).inverse_frequencies[0] == 1.0
        assert rope.scaling.at(original + 1).inverse_frequencies[0] == 0.5


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_theta": "10000"}, ["rope_theta", "10000"]),
        ({"rope_theta": 1.0}, ["rope_theta"]),
        ({"rope_theta": 1e31}, ["rope_theta"]),
        ({"partial_rotary_factor": 0.01}, ["partial_rotary_factor", "0 dimensions"]),
        ({"partial_rotary_factor": 1.5}, ["partial_rotary_factor"]),
        ({"rope_scaling": [4.0]}, ["rope_scaling", "object"]),
        ({"rope_scaling": {"type": "ntk-aware", "factor": 2.0}}, ["rope_scaling.type", "ntk-aware", "yarn"]),
        ({"rope_scaling": {"type": "linear"}}, ["rope_scaling.factor", "missing"]),
        ({"rope_scaling": {"type": "linear", "factor": -4}}, ["rope_scaling.factor", "-4"]),
        ({"rope_scaling": {"type": "dynamic", "factor": "2"}}, ["rope_scaling.factor"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}}, ["low_freq_factor"]),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}},
            ["high_freq_factor", "above low_freq_factor"],
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 32}},
            ["beta_fast", "beta_slow"],
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": 1}}, ["truncate", "true or false"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}}, ["original_max"]),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4}}, ["long_factor"]),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3}},
            ["short_factor", "list of 3", "4"],
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 0.0, 1, 1], "long_factor": [1.0] * 4}},
            ["short_factor", "0.0"],
        ),
        ({"rope_scaling": {"type": "default", "magic": 3}}, ["rope_scaling.magic", "3"]),
    ],
)
def test_numbers_that_make_no_sense_are_named(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        ours(config, 8, 512)
    message = str(caught.value)
    assert all(word in message for word in ["config.json", *words]), message


def model(rope: RopeSpec, context: int) -> ModelSpec:
    sizes = {"hidden": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "intermediate": 8, "vocab": 8}
    return ModelSpec(
        architecture="llama", max_context=context, norm_eps=1e-5, tied=True, ropes=(rope,), layer_specs=(LayerSpec(),),
        **sizes,
    )  # fmt: skip


def test_tables_hold_the_frequencies_of_the_engines_context() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16}
    rope = ours({"rope_scaling": {"type": "longrope", **factors}}, 8, 64)
    spec = model(rope, 64)
    scale = math.sqrt(1 + math.log(4) / math.log(16))
    for context, factor in ((16, 1.0), (17, 2.0)):
        ((cos, sin),) = rope_tables(spec, context)
        angles = np.arange(context)[:, None] * 10000.0 ** (-np.arange(4) / 4) / factor
        np.testing.assert_allclose(cos, scale * np.cos(angles), atol=1e-6)
        np.testing.assert_allclose(sin, scale * np.sin(angles), atol=1e-6)
    said = note(spec, 17)
    assert said is not None and "longrope" in said and "17" in said
    assert note(spec, 16) is None, "transformers computes the same"
    assert note(model(ours({}, 8, 64), 64), 64) is None


def test_long_tables_equal_short_ones() -> None:
    spec = model(ours({}, 8, 20_000), 20_000)
    ((long, _),), ((short, _),) = rope_tables(spec, 20_000), rope_tables(spec, 100)
    np.testing.assert_array_equal(long[:100], short)
    assert long.shape == (20_000, 4) and long[19_999, 0] == np.float32(math.cos(19_999))
