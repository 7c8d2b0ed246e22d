"""Matching a file's tensors with the rules, both directions: slices by views, other orders and values by one copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.models.architecture import Place, TensorRule
from octavo.models.architectures.decoder import decoder_rules
from octavo.models.gguf import GgufFile
from octavo.models.metadata import Metadata
from octavo.models.names import Found, Matched, match, other_parts
from octavo.models.registry import ARCHITECTURES, of_gguf, rules_of
from octavo.models.spec import ModelError, Tensor
from tests.support.tiny import Tiny, interleave_rows

EMBED = TensorRule("embed.weight", (6, 4), "model.embed_tokens.weight", "token_embd.weight")


def stored(name: str, values: np.ndarray) -> Tensor:
    return Tensor(name, "F32", values.shape, np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def mapped(matched: Matched, *tensors: Tensor) -> dict[str, np.ndarray]:
    found = {tensor.name: Found(tensor.source, tensor.shape) for tensor in tensors}
    values = {}
    for tensor in matched.map(tensors):
        assert matched.sources(found)[tensor.name] == (tensor.source, tensor.shape)
        values[tensor.name] = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
    assert values.keys() == matched.sources(found).keys()
    return values


def found(*tensors: Tensor) -> dict[str, Found]:
    return {tensor.name: Found(tensor.source, tensor.shape) for tensor in tensors}


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng().standard_normal(shape).astype(np.float32)


def test_a_stacked_tensor_gives_each_rule_its_slice_as_a_view() -> None:
    values = random(3, 4, 2)
    stack = stored("blk.0.ffn_up_exps.weight", values)
    places = [Place(stack.name, (3, 4, 2), i) for i in range(3)]
    rules = [TensorRule(f"e{p.run}", (4, 2), f"model.e{p.run}", stack.name, gguf_places=(p,)) for p in places]
    matched = match("m.gguf", rules, found(stack), "gguf")
    for i, tensor in enumerate(matched.map([stack])):
        assert np.shares_memory(np.frombuffer(tensor.data, np.uint8), np.frombuffer(stack.data, np.uint8))
        np.testing.assert_array_equal(np.frombuffer(tensor.data, np.float32).reshape(4, 2), values[i])
    with pytest.raises(ModelError, match=r"\[4, 4, 2\].*\[3, 4, 2\]"):
        match("m.gguf", rules, found(stored(stack.name, random(4, 4, 2))), "gguf")
    with pytest.raises(ModelError, match="ffn_up_exps"):
        match("m.gguf", rules, {}, "gguf")
    with pytest.raises(ModelError, match=r"2 tensors: model.e1, model.e2"):
        match("m", rules, {"model.e0": Found("F32", (4, 2))}, "hf")


def test_a_fused_tensor_gives_each_rule_its_rows() -> None:
    fused = stored("model.qkv", random(7, 2))
    rules = [
        TensorRule("q", (4, 2), "model.qkv", "q", rows=(0, 4)),
        TensorRule("k", (3, 2), "model.qkv", "k", rows=(4, 7)),
    ]
    values = mapped(match("m", rules, found(fused), "hf"), fused)
    np.testing.assert_array_equal(
        np.concatenate([values["q"], values["k"]]), np.frombuffer(fused.data, np.float32).reshape(7, 2)
    )
    with pytest.raises(ModelError, match=r"model.qkv has shape \[8, 2\], the configuration says \[7, 2\]"):
        match("m", rules, found(stored("model.qkv", random(8, 2))), "hf")


def test_one_is_added_to_gains_of_hugging_face_files_alone() -> None:
    rule = TensorRule("norm.weight", (4,), "model.norm.weight", "output_norm.weight", hf_plus_one=True)
    gain = random(4)
    hf, gguf = stored(rule.hf, gain), stored(rule.gguf, gain)
    np.testing.assert_array_equal(mapped(match("m", [rule], found(hf), "hf"), hf)["norm.weight"], gain + 1)
    np.testing.assert_array_equal(mapped(match("m", [rule], found(gguf), "gguf"), gguf)["norm.weight"], gain)
    half = Tensor(rule.hf, "F16", (4,), gain.astype(np.float16).view(np.uint8).data)
    np.testing.assert_array_equal(
        mapped(match("m", [rule], found(half), "hf"), half)["norm.weight"],
        gain.astype(np.float16).astype(np.float32) + 1,
    )


def test_rows_in_rotation_pairs_are_put_in_order() -> None:
    for values in (random(12, 5), random(12)):
        rule = TensorRule("q", values.shape, "model.q", "q", gguf_interleaved_heads=2)
        pairs = stored("q", interleave_rows(values, 2))
        np.testing.assert_array_equal(mapped(match("m.gguf", [rule], found(pairs), "gguf"), pairs)["q"], values)
        plain = stored("model.q", values)
        np.testing.assert_array_equal(mapped(match("m", [rule], found(plain), "hf"), plain)["q"], values)


def test_optional_tensors_may_be_left_out() -> None:
    rules = [EMBED, TensorRule("bias", (4,), "model.bias", "bias", optional=True)]
    embed, bias = stored(EMBED.hf, random(6, 4)), stored("model.bias", random(4))
    assert mapped(match("m", rules, found(embed), "hf"), embed).keys() == {"embed.weight"}
    assert mapped(match("m", rules, found(embed, bias), "hf"), embed, bias).keys() == {"embed.weight", "bias"}


def test_what_nothing_reads_is_reported_and_tables_of_frequencies_are_not() -> None:
    extra = (
        "model.extra",
        "model.layers.3.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.inv_freq",
        "lm_head.weight",
    )
    names = {EMBED.hf: Found("F32", (6, 4)), **dict.fromkeys(extra, Found("F32", (1,)))}
    assert match("m", [EMBED], names, "hf").unknown == ("model.extra",)
    extra = ("rope_freqs.weight", "rope_factors_long.weight", "blk.7.attn_rot_embd.weight", "output.weight", "x")
    names = {EMBED.gguf: Found("F32", (6, 4)), **dict.fromkeys(extra, Found("F32", (1,)))}
    assert match("m", [EMBED], names, "gguf").unknown == ("x",)


def test_names_without_the_leading_model_are_found() -> None:
    norm = TensorRule("norm.weight", (4,), "model.norm.weight", "output_norm.weight")
    embed, gain = stored("embed_tokens.weight", random(6, 4)), stored("norm.weight", random(4))
    matched = match("m", [EMBED, norm], found(embed, gain), "hf")
    assert mapped(matched, embed, gain).keys() == {"embed.weight", "norm.weight"} and not matched.unknown


def test_the_language_model_inside_another_is_found_and_its_other_parts_are_silent() -> None:
    embed = stored("language_model.model.embed_tokens.weight", random(6, 4))
    names = {**found(embed), "vision_tower.patch.weight": Found("F32", (1,))}
    matched = match("m", [EMBED], names, "hf")
    assert mapped(matched, embed).keys() == {"embed.weight"} and not matched.unknown
    assert other_parts(names) == ("vision_tower",)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model."])
def test_the_language_model_of_a_multimodal_one_is_refused(prefix: str) -> None:
    names = {f"{prefix}embed_tokens.weight": Found("F32", (6, 4)), "vision_tower.patch.weight": Found("F32", (1,))}
    with pytest.raises(ModelError, match=f"multimodal.*{prefix}embed_tokens"):
        match("m", [EMBED], names, "hf")


def test_a_wrong_shape_is_named_with_both() -> None:
    with pytest.raises(ModelError, match=r"token_embd.weight has shape \[5, 4\], the configuration says \[6, 4\]"):
        match("m.gguf", [EMBED], {EMBED.gguf: Found("F32", (5, 4))}, "gguf")


def test_rules_name_each_canonical_tensor_once() -> None:
    spec = Tiny(tied=False, attn_bias=True, mlp_bias=True).spec()
    rules = rules_of(spec)
    assert len({rule.canonical for rule in rules}) == len(rules)
    assert len({rule.gguf for rule in rules}) == len({rule.hf for rule in rules}) == len(rules)
    assert [rule.canonical for rule in decoder_rules(spec)] == [rule.canonical for rule in rules]


def test_every_architecture_is_found_under_one_name_only() -> None:
    for field in ("name", "hf_classes", "model_types"):
        names = [name for one in ARCHITECTURES for name in ([one.name] if field == "name" else getattr(one, field))]
        assert len(set(names)) == len(names)


def test_a_gguf_name_that_several_share_is_settled_by_the_file() -> None:
    def taker(name: str, experts: int) -> str:
        file = GgufFile(Path("m.gguf"), 0, memoryview(b""))
        file.metadata |= {"general.architecture": name, f"{name}.expert_count": experts}
        return of_gguf(Metadata(file)).name

    assert (taker("llama", 0), taker("llama", 8)) == ("llama", "mixtral")
    names = [name for one in ARCHITECTURES for name in one.gguf_names]
    assert {name for name in names if names.count(name) > 1} == {"llama"}
