"""Quantised safetensors directories: the values that the format's text gives, in the file's precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.models.checkpoint import open_checkpoint
from octavo.models.spec import ModelError
from octavo.ops.numeric import expand
from tests.support.quantised import (
    Packer,
    awq,
    compressed_config,
    fp8,
    gptq,
    packed_ints,
    plain_ints,
    write_quantised,
)
from tests.support.tiny import Tiny

WIDE = Tiny(hidden=128, heads=4, kv_heads=2, intermediate=160, layers=1)
ODD = Tiny(hidden=48, heads=2, kv_heads=1, head_dim=24, intermediate=72, layers=1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


def gptq_config(bits: int = 4, group: int = 32, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True, **more}


def awq_config(group: int = 32, **more: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm", **more}


def fp8_config(**more: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", **more}


def packed_config(bits: int = 4, strategy: str = "group", **more: Any) -> dict[str, Any]:
    return compressed_config("pack-quantized", num_bits=bits, type="int", strategy=strategy, **more)


INT8 = compressed_config("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=True)
FLOAT8 = compressed_config("float-quantized", num_bits=8, type="float", strategy="channel")
V2 = {"checkpoint_format": "gptq_v2"}
BLOCKS = {"weight_block_size": [32, 64]}

FORMS: dict[str, tuple[Packer, dict[str, Any], Tiny, str]] = {
    "gptq": (gptq(), gptq_config(), WIDE, "G4"),
    "gptq, symmetric, no g_idx": (gptq(symmetric=True, with_index=False), gptq_config(), WIDE, "G4"),
    "gptq of 64": (gptq(group=64), gptq_config(group=64), Tiny(intermediate=128), "G4"),
    "gptq of 128, a short last group": (gptq(group=128), gptq_config(group=128), WIDE, "G4"),
    "gptq, one group": (gptq(group=-1), gptq_config(group=-1), WIDE, "G4"),
    "gptq v2": (gptq(v2=True), gptq_config(**V2), WIDE, "G4"),
    "gptq, bfloat16 scales": (gptq(scale_type=ml_dtypes.bfloat16), gptq_config(), WIDE, "G4"),
    "gptq, float32 scales": (gptq(scale_type=np.float32), gptq_config(), WIDE, "F32"),
    "gptq, float32 scales, symmetric": (gptq(symmetric=True, scale_type=np.float32), gptq_config(), WIDE, "G4"),
    "gptq, act-order": (gptq(act_order=True), gptq_config(desc_act=True), WIDE, "F32"),
    "gptq, small groups": (gptq(group=16), gptq_config(group=16), WIDE, "F32"),
    "gptq, odd rows": (gptq(group=24), gptq_config(group=24), ODD, "F32"),
    "gptq, 8 bits": (gptq(bits=8, symmetric=True), gptq_config(bits=8), WIDE, "G8"),
    "gptq, 8 bits with zeros": (gptq(bits=8), gptq_config(bits=8), WIDE, "F32"),
    "awq": (awq(), awq_config(), WIDE, "G4"),
    "awq of 64": (awq(64), awq_config(64), Tiny(intermediate=64), "G4"),
    "awq, one group": (awq(-1), awq_config(-1, version="GEMM"), WIDE, "G4"),
    "awq, odd rows": (awq(24), awq_config(24), ODD, "F32"),
    "packed": (packed_ints(), packed_config(group_size=32), WIDE, "G4"),
    "packed with zeros": (packed_ints(symmetric=False), packed_config(group_size=32, symmetric=False), WIDE, "G4"),
    "packed with plain zeros": (
        packed_ints(symmetric=False, plain_zeros=True), packed_config(group_size=32, symmetric=False), WIDE, "G4",
    ),
    "packed, a scale a row": (packed_ints(group=None), packed_config(strategy="channel"), WIDE, "G4"),
    "packed, odd rows": (packed_ints(group=None), packed_config(strategy="channel"), ODD, "F32"),
    "packed, act-order": (
        packed_ints(act_order=True), packed_config(group_size=32, actorder="group"), WIDE, "F32",
    ),
    "packed, 8 bits": (packed_ints(bits=8), packed_config(8, group_size=32), WIDE, "G8"),
    "packed, 8 bits with zeros": (
        packed_ints(bits=8, symmetric=False), packed_config(8, group_size=32, symmetric=False), WIDE, "F32",
    ),
    "int8": (plain_ints(), INT8, WIDE, "G8"),
    "int8, a scale a matrix": (
        plain_ints(per_row=False), compressed_config("naive-quantized", num_bits=8, strategy="tensor"), WIDE, "G8",
    ),
    "int8 with zeros": (plain_ints(symmetric=False), INT8, WIDE, "F32"),
    "float8": (fp8((1, 0), "weight_scale", scale_type=ml_dtypes.bfloat16, input_scale=True), FLOAT8, WIDE, "F32"),
    "float8 in blocks": (
        fp8((32, 64), "weight_scale"),
        compressed_config("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[32, 64]),
        WIDE, "F32",
    ),
    "fp8 blocks": (fp8((32, 64)), fp8_config(**BLOCKS), WIDE, "F32"),
    "fp8 blocks of 128": (fp8(), fp8_config(weight_block_size=[128, 128]), WIDE, "F32"),
    "fp8, powers of two": (fp8((32, 64), power_of_two=True), fp8_config(**BLOCKS), WIDE, "BF16"),
    "fp8, a scale a matrix": (
        fp8(None, "weight_scale", input_scale=True), fp8_config(activation_scheme="static"), WIDE, "F32",
    ),
    "fp8, a scale a row": (fp8((1, 0), "weight_scale"), fp8_config(quant_method="fbgemm_fp8"), WIDE, "F32"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_values_are_those_of_the_format(tmp_path: Path, name: str) -> None:
    packer, config, tiny, kind = FORMS[name]
    model = write_quantised(tmp_path / "m", packer, config, tiny, keep="k_proj")
    checkpoint = open_checkpoint(model.path)
    seen = {}
    for tensor in checkpoint.tensors():
        values = expand(tensor.source, tensor.shape, tensor.data)
        np.testing.assert_array_equal(values, model.weights[tensor.name], err_msg=tensor.name)
        seen[tensor.name] = tensor.source
        assert (tensor.source, tensor.shape) == checkpoint.sources()[tensor.name]
    assert seen.keys() == model.weights.keys()
    assert seen["layers.0.attn.q.weight"] == seen["layers.0.mlp.down.weight"] == kind
    assert seen["layers.0.attn.k.weight"] == seen["embed.weight"] == "F32"
    assert checkpoint.total_bytes == sum(len(tensor.data) for tensor in checkpoint.tensors())
    expanded = [note for note in checkpoint.notes if "expanded" in note]
    assert bool(expanded) == (kind not in ("G4", "G8")), checkpoint.notes
    checkpoint.close()


def test_activations_that_stay_in_floats_are_told(tmp_path: Path) -> None:
    config = json.loads(json.dumps(INT8))
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": True, "strategy": "token"}
    model = write_quantised(tmp_path / "m", plain_ints(), config, WIDE)
    assert any("activations and the KV cache are not quantised" in note for note in open_checkpoint(model.path).notes)


def test_scales_of_the_cache_and_zero_biases_are_no_unknown_tensors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def more(values: np.ndarray, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
        stored, exact = gptq()(values, rng)
        return {**stored, "bias": np.zeros(len(values), np.float16), "k_scale": np.ones(1, np.float32)}, exact

    checkpoint = open_checkpoint(write_quantised(tmp_path / "m", more, gptq_config(), WIDE).path)
    assert not caplog.text
    assert any("KV cache" in note for note in checkpoint.notes)


@pytest.mark.parametrize(
    ("file", "packer", "config"),
    [
        ("quantize_config.json", gptq(), {"bits": 4, "group_size": 32, "desc_act": False}),
        ("quant_config.json", awq(), {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}),
    ],
)
def test_older_directories_keep_their_settings_beside(
    tmp_path: Path, file: str, packer: Packer, config: dict[str, Any]
) -> None:
    model = write_quantised(tmp_path / "m", packer, config, WIDE)
    described = json.loads((model.path / "config.json").read_text())
    del described["quantization_config"]
    (model.path / "config.json").write_text(json.dumps(described))
    (model.path / file).write_text(json.dumps(config))
    checkpoint = open_checkpoint(model.path)
    first = checkpoint.weights_id()
    for tensor in checkpoint.tensors():
        got = expand(tensor.source, tensor.shape, tensor.data)
        np.testing.assert_array_equal(got, model.weights[tensor.name])
    (model.path / file).write_text(json.dumps({**config, "damp_percent": 0.1}))
    assert open_checkpoint(model.path).weights_id() != first


def test_compression_config_is_another_name(tmp_path: Path) -> None:
    model = write_quantised(tmp_path / "m", packed_ints(), packed_config(group_size=32), WIDE)
    path = model.path / "config.json"
    path.write_text(path.read_text().replace('"quantization_config"', '"compression_config"'))
    assert open_checkpoint(model.path).sources()["layers.0.attn.q.weight"][0] == "G4"


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ["bitsandbytes", "GPTQ", "GGUF"]),
    "mxfp4": ({"quant_method": "mxfp4"}, ["mxfp4", "AWQ"]),
    "no method": ({}, ["None"]),
    "a method that is no text": ({"quant_method": 4}, ["quant_method"]),
    "gptq, 3 bits": (gptq_config(bits=3), ["bits 3", "4 and 8"]),
    "gptq, 2 bits": (gptq_config(bits=2), ["bits 2"]),
    "gptq, marlin": (gptq_config(checkpoint_format="marlin"), ["marlin", "gptq_v2"]),
    "gptq, marlin flag": (gptq_config(is_marlin_format=True), ["Marlin"]),
    "gptq, group 0": (gptq_config(group=0), ["group_size is 0"]),
    "gptq, group text": (gptq_config(group="x"), ["group_size"]),  # type: ignore[arg-type]
    "gptq, no bits": ({"quant_method": "gptq"}, ["bits"]),
    "gptq, mixed": (gptq_config(dynamic={"+:.*down.*": {"bits": 8}}), ["dynamic", "+:.*down.*"]),
    "awq, gemv": (awq_config(version="gemv"), ["gemv", "gemm"]),
    "awq, llm-awq": (awq_config(backend="llm-awq"), ["llm-awq"]),
    "awq, 8 bits": ({**awq_config(), "bits": 8}, ["bits 8"]),
    "nvfp4": (compressed_config("nvfp4-pack-quantized", num_bits=4, type="float"), ["nvfp4", "pack-quantized"]),
    "packed, 2 bits": (packed_config(2, group_size=32), ["2 bits"]),
    "float of 4 bits": (compressed_config("float-quantized", num_bits=4, type="float"), ["4 bits"]),
    "packed, group 0": (packed_config(group_size=0), ["group_size is 0"]),
    "packed, strategy": (packed_config(strategy="tensor_group"), ["tensor_group"]),
    "block 0": (fp8_config(weight_block_size=[0, 128]), ["weight_block_size"]),
    "block of one": (fp8_config(weight_block_size=[128]), ["weight_block_size"]),
    "fp8, e5m2": (fp8_config(fmt="e5m2"), ["e5m2", "e4m3"]),
    "sparse": ({**packed_config(group_size=32), "sparsity_config": {"format": "sparse-24-bitmask"}}, ["sparse-24"]),
    "rotated": ({**packed_config(group_size=32), "transform_config": {"config_groups": {"u": {}}}}, ["rotated"]),
    "no groups": ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, ["config_groups"]),
    "a group of text": ({"quant_method": "compressed-tensors", "config_groups": {"a": "b"}}, ["config_groups.a"]),
}  # fmt: skip


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_another_way_of_quantising_is_refused_by_name(tmp_path: Path, name: str) -> None:
    config, expected = REFUSED[name]
    message = refusal(write_quantised(tmp_path / "m", gptq(), config, WIDE).path)
    assert all(word in message for word in ["config.json", *expected]), message


Q = "model.layers.0.self_attn.q_proj."
DAMAGES: dict[str, tuple[str, str, Any, list[str]]] = {
    "no scales": ("gptq", "scales", None, ["lacks", "scales"]),
    "no zeros": ("gptq", "qzeros", None, ["lacks", "qzeros"]),
    "short scales": ("gptq", "scales", np.ones((3, 128), np.float16), ["[3, 128]", "[4, 128]"]),
    "scales of integers": ("gptq", "scales", np.ones((4, 128), np.int32), ["I32", "F16"]),
    "flat zeros": ("gptq", "qzeros", np.ones(64, np.int32), ["qzeros", "[64]"]),
    "empty words": ("gptq", "qweight", np.ones((0, 128), np.int32), ["qweight", "matrix"]),
    "words of floats": ("gptq", "qweight", np.ones((16, 128), np.float32), ["qweight", "I32"]),
    "more inputs": ("gptq", "qweight", np.ones((20, 128), np.int32), ["scales", "[5, 128]"]),
    "a group too many": ("gptq", "g_idx", np.full(128, 4, np.int32), ["g_idx", "0 to 3"]),
    "a group below": ("gptq", "g_idx", np.arange(-1, 127, dtype=np.int32), ["g_idx"]),
    "g_idx short": ("gptq", "g_idx", np.zeros(5, np.int32), ["g_idx", "[5]"]),
    "twice": ("gptq", "weight", np.ones((128, 128), np.float32), ["twice"]),
    "awq zeros": ("awq", "qzeros", np.ones((4, 4), np.int32), ["qzeros", "[4, 16]"]),
    "shape": ("packed", "weight_shape", np.array([128, 1 << 40]), ["weight_packed", "weight_shape"]),
    "negative shape": ("packed", "weight_shape", np.array([-128, -128]), ["weight_packed"]),
    "no shape": ("packed", "weight_shape", None, ["lacks", "weight_shape"]),
    "int8 without scale": ("int8", "weight_scale", None, ["lacks", "weight_scale"]),
    "int8 in floats": ("int8", "weight", np.ones((128, 128), np.float32), ["weight_scale", "compressed"]),
    "fp8 without scale": ("fp8 blocks", "weight_scale_inv", None, ["lacks", "weight_scale_inv"]),
    "fp8 of another kind": ("fp8 blocks", "weight", np.ones((128, 128), ml_dtypes.float8_e5m2), ["F8_E5M2"]),
    "fp8 grid": ("fp8 blocks", "weight_scale_inv", np.ones((4, 4), np.float32), ["[4, 4]", "[4, 2]"]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_parts_that_do_not_fit_are_named(tmp_path: Path, name: str) -> None:
    form, suffix, replacement, expected = DAMAGES[name]
    packer, config, tiny, _ = FORMS[form]

    def damaged(values: np.ndarray, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
        stored, exact = packer(values, rng)
        if values.shape != (128, 128):
            return stored, exact
        stored.pop(suffix, None)
        return stored if replacement is None else {**stored, suffix: replacement}, exact

    message = refusal(write_quantised(tmp_path / "m", damaged, config, tiny).path)
    assert all(word in message for word in [f"{Q}", *expected]), message


def test_a_quantised_matrix_of_another_shape_is_refused(tmp_path: Path) -> None:
    def halved(values: np.ndarray, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
        return gptq()(values[: len(values) // 2], rng)

    message = refusal(write_quantised(tmp_path / "m", halved, gptq_config(), WIDE).path)
    assert f"{Q}weight has shape [64, 128]" in message and "[128, 128]" in message


def test_a_method_without_quantised_tensors_is_a_float_model(tmp_path: Path) -> None:
    model = write_quantised(tmp_path / "m", gptq(), gptq_config(), WIDE, keep="proj")
    checkpoint = open_checkpoint(model.path)
    assert {source for source, _ in checkpoint.sources().values()} == {"F32"} and checkpoint.notes == ()


def test_quantised_tensors_without_a_method_are_missing_weights(tmp_path: Path) -> None:
    model = write_quantised(tmp_path / "m", gptq(), gptq_config(), WIDE)
    path = model.path / "config.json"
    described = json.loads(path.read_text())
    del described["quantization_config"]
    path.write_text(json.dumps(described))
    assert "lacks" in refusal(model.path)
