"""Typed access to config.json and to GGUF's metadata: what is wrong is one sentence with the file and the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.models import metadata
from octavo.models.config_reader import CHANGES_RESULTS, ConfigReader
from octavo.models.gguf import GgufFile, GgufTensor
from octavo.models.metadata import Metadata
from octavo.models.registry import ARCHITECTURES, gguf_model, hf_model, rules_of
from octavo.models.spec import ModelError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def reader(**values: Any) -> ConfigReader:
    return ConfigReader(Path("some/config.json"), values)


def meta(**values: Any) -> Metadata:
    class File:
        path = Path("m.gguf")
        metadata = {"general.architecture": "llama", **{key.replace("__", "."): one for key, one in values.items()}}
        tensors: dict[str, Any] = {}

    return Metadata(File())  # type: ignore[arg-type]


def refused(call: Any, *args: Any, **named: Any) -> str:
    with pytest.raises(ModelError) as caught:
        call(*args, **named)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    return str(caught.value)


def test_values_of_the_right_type_are_given() -> None:
    config = reader(a=3, b=2.0, c=0.5, d=True, e="x", f=[1.0, 2], g={"h": 1}, i=None, j=["p", "q"])
    assert (config.integer("a"), config.integer("b"), config.number("c"), config.number("a")) == (3, 2, 0.5, 3.0)
    assert config.flag("d") and config.string("e") == "x" and config.numbers("f", 2) == (1.0, 2.0)
    section = config.section("g")
    assert section is not None and section.integer("h") == 1
    assert config.integer("i", 7) == 7 and config.integer("z", 7) == 7 and config.section("i") is None
    assert config.is_null("i") and not config.is_null("z") and not config.has("i") and config.has("a")
    assert config.choice("e", "y", {"x": 1, "y": 2}) == 1 and config.choice("z", "y", {"x": 1, "y": 2}) == 2
    assert config.items("z", 2, str, "names") is None and config.items("j", 2, str, "names") == ("p", "q")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.integer("a"), ["a is missing"]),
        (lambda c: c.integer("s"), ["s is 'x'", "whole number"]),
        (lambda c: c.integer("f"), ["f is 0.5"]),
        (lambda c: c.integer("t"), ["t is True"]),
        (lambda c: c.integer("big", high=100), ["big is 1000", "100"]),
        (lambda c: c.integer("z", 0, low=1), ["z is 0"]),
        (lambda c: c.number("s"), ["s is 'x'"]),
        (lambda c: c.number("n"), ["n is -1"]),
        (lambda c: c.number("nan"), ["nan"]),
        (lambda c: c.number("inf"), ["inf"]),
        (lambda c: c.number("t"), ["t is True"]),
        (lambda c: c.flag("big"), ["big is 1000", "true or false"]),
        (lambda c: c.string("big"), ["big is 1000"]),
        (lambda c: c.section("s"), ["s is 'x'", "object"]),
        (lambda c: c.numbers("list", 3), ["list of 2", "3 positive"]),
        (lambda c: c.numbers("list", 2), ["list holds 'b'"]),
        (lambda c: c.choice("s", "q", {"p": 1, "q": 2}), ["s 'x'", "p, q"]),
        (lambda c: c.items("list", 2, int, "numbers"), ["list", "2 numbers"]),
        (lambda c: c.section("inner").integer("deep"), ["inner.deep is 'y'"]),
    ],
)
def test_wrong_values_are_named_with_file_and_key(call: Any, words: list[str]) -> None:
    config = reader(
        s="x", f=0.5, t=True, big=1000, n=-1, nan=float("nan"), inf=float("inf"), list=[1, "b"], inner={"deep": "y"}
    )
    message = refused(call, config)
    assert all(word in message for word in ["some/config.json", *words]), message


@given(JSON)
def test_any_value_is_read_or_refused(value: Any) -> None:
    config = reader(x=value)
    for call in (
        lambda: config.integer("x", high=10),
        lambda: config.number("x"),
        lambda: config.flag("x"),
        lambda: config.string("x"),
        lambda: config.numbers("x", 2),
        lambda: config.items("x", 2, str, "names"),
        lambda: config.section("x"),
        lambda: config.choice("x", "a", {"a": 1}),
        config.refuse_unread,
    ):
        try:
            call()
        except ModelError as error:
            assert "config.json" in str(error)


ROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["linear", "dynamic", "yarn", "llama3", "longrope"])},
    optional={
        "factor": JSON,
        "rope_theta": JSON,
        "low_freq_factor": st.just(1.0),
        "high_freq_factor": JSON,
        "original_max_position_embeddings": JSON,
        "short_factor": st.just([1.0] * 8),
        "long_factor": st.just([2.0] * 8),
    },
)
SETTINGS = sorted({*CHANGES_RESULTS, "hidden_size", "num_attention_heads", "head_dim", "rms_norm_eps", "hidden_act"})


@given(
    st.sampled_from([name for one in ARCHITECTURES for name in one.model_types]),
    st.dictionaries(st.sampled_from(SETTINGS), JSON, max_size=4),
    st.none() | ROPE,
)
def test_any_configuration_gives_a_spec_or_a_sentence(kind: str, changes: dict[str, Any], rope: Any) -> None:
    changes |= {} if rope is None else {"rope_scaling": rope}
    base = {
        "model_type": kind,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 8,
        "vocab_size": 10,
        "num_key_value_heads": 2,
    }
    try:
        spec = hf_model(reader(**{**base, **changes}))
        assert spec.layers == 2 and rules_of(spec) and spec.at_context(9).layers == 2
    except ModelError as error:
        assert "config.json" in str(error)


def test_a_setting_that_nothing_read_and_that_changes_results_is_refused() -> None:
    assert "qk_layernorm" in refused(reader(qk_layernorm=True).refuse_unread)
    assert "sliding_window 5" in refused(reader(sliding_window=5).refuse_unread)
    reader(qk_layernorm=False, sliding_window=None, attention_dropout=0.5, residual_multiplier=1.0).refuse_unread()
    config = reader(sliding_window=5)
    assert config.integer("sliding_window") == 5
    config.refuse_unread()


def test_metadata_of_the_right_type_is_given() -> None:
    values = meta(llama__a=3, llama__b=0.5, llama__c=True, llama__d="x", llama__e=np.array([4, 4]), f=["p"])
    assert (values.integer(".a"), values.number(".b"), values.flag(".c"), values.string(".d")) == (3, 0.5, True, "x")
    assert values.integer(".e") == 4 and values.strings("f") == ["p"] and values.full(".a") == "llama.a"
    assert values.has(".a") and not values.has(".z") and values.vector("none", 3) is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.integer(".z"), ["llama.z is missing"]),
        (lambda m: m.integer(".s"), ["llama.s is 'x'"]),
        (lambda m: m.integer(".differ"), ["llama.differ"]),
        (lambda m: m.integer(".t"), ["llama.t is True"]),
        (lambda m: m.number(".n"), ["llama.n is -1.0"]),
        (lambda m: m.flag(".n"), ["llama.n", "true or false"]),
        (lambda m: m.string(".n"), ["llama.n", "string"]),
    ],
)
def test_wrong_metadata_is_named_with_file_and_key(call: Any, words: list[str]) -> None:
    message = refused(call, meta(llama__s="x", llama__differ=np.array([1, 2]), llama__t=True, llama__n=-1.0))
    assert all(word in message for word in ["m.gguf", *words]), message


@pytest.mark.parametrize(
    ("values", "refuses"),
    [
        ({"llama__expert_count": 8}, True),
        ({"llama__expert_count": 0}, False),
        ({"llama__attention__causal": False}, True),
        ({"llama__attention__causal": True}, False),
        ({"llama__residual_scale": 0.5}, True),
        ({"llama__residual_scale": 1.0}, False),
        ({"llama__attention__sliding_window_pattern": np.array([True, False])}, True),
        ({"llama__attention__sliding_window_pattern": np.array([False, False])}, False),
        ({"llama__rope__dimension_sections": np.array([8, 8, 8])}, True),
        ({"llama__pooling_type": 3}, True),
        ({"qwen2__expert_count": 8}, False),
    ],
)
def test_metadata_that_nothing_read_and_that_changes_results_is_refused(values: dict[str, Any], refuses: bool) -> None:
    if refuses:
        assert next(iter(values)).replace("__", ".") in refused(meta(**values).refuse_unread)
    else:
        meta(**values).refuse_unread()


VALUES = (
    st.booleans()
    | st.integers(-1, 2**63)
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(0, 3), max_size=4).map(np.array)
)
KEYS = sorted({*metadata.CHANGES_RESULTS, ".rope.freq_base", ".rope.dimension_count", ".attention.key_length"})


@given(
    st.sampled_from(sorted({name for one in ARCHITECTURES for name in one.gguf_names})),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
)
def test_any_metadata_give_a_spec_or_a_sentence(name: str, changes: dict[str, Any]) -> None:
    file = GgufFile(Path("m.gguf"), 0, memoryview(b""))
    sizes = {"embedding_length": 64, "block_count": 2, "context_length": 64, "feed_forward_length": 8}
    heads = {"attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5}
    file.metadata["general.architecture"] = name
    file.metadata |= {f"{name}.{key}": value for key, value in (sizes | heads).items()}
    file.metadata |= {f"{name}{key}": value for key, value in changes.items()}
    file.tensors["token_embd.weight"] = GgufTensor("token_embd.weight", "F32", (10, 64), 0, 0)
    try:
        spec = gguf_model(Metadata(file))
        assert spec.layers == 2 and rules_of(spec) and spec.at_context(9).layers == 2
    except ModelError as error:
        assert "m.gguf" in str(error)
