"""Quantised safetensors against transformers: the same logits as the float model of the values that the file holds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.support import oracle as oracle_support
from tests.support.driver import Driver
from tests.support.executors import Build
from tests.support.families import FAMILIES
from tests.support.quantised import (
    Packer,
    awq,
    compressed_config,
    fp8,
    gptq,
    packed_ints,
    plain_ints,
    quantise,
    write_arrays,
    write_quantised,
)
from tests.support.tiny import BASE_VOCAB, Tiny, TinyModel, file_names

FORMS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "gptq": (gptq(), {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "gptq, act-order": (gptq(act_order=True), {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "gptq, 8 bits": (gptq(bits=8, symmetric=True), {"quant_method": "gptq", "bits": 8, "group_size": 32}),
    "awq": (awq(64), {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}),
    "packed": (
        packed_ints(symmetric=False),
        compressed_config("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False),
    ),
    "int8": (plain_ints(), compressed_config("int-quantized", num_bits=8, strategy="channel")),
    "fp8": (fp8(), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
}


def oracle(folder: Path, model: TinyModel, tiny: Tiny) -> Any:
    """transformers' model of the dequantised values."""
    folder.mkdir()
    described = json.loads((model.path / "config.json").read_text())
    del described["quantization_config"]
    (folder / "config.json").write_text(json.dumps(described))
    names = file_names(tiny.spec(), "hf")
    write_arrays(folder / "model.safetensors", {names[name]: values for name, values in model.weights.items()})
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


@pytest.mark.parametrize("name", FORMS)
def test_logits_are_those_of_the_dequantised_model(name: str, tmp_path: Path, build: Build, rng: random.Random) -> None:
    packer, config = FORMS[name]
    tiny = Tiny(hidden=128, heads=4, kv_heads=2, intermediate=160, tied=False, seed=rng.getrandbits(31))
    model = write_quantised(tmp_path / "m", packer, config, tiny)
    expected_of = oracle(tmp_path / "float", model, tiny)
    tokens = [rng.randrange(BASE_VOCAB) for _ in range(40)]
    with torch.no_grad():
        expected = expected_of(torch.tensor([tokens])).logits[0].numpy()
    for backend in ("cpu", "reference"):
        driver = Driver(build(model.path, precision="float32", max_num_seqs=64, backend=backend), rng)
        assert np.abs(driver.prompt_logits(tokens) - expected).max() < 1e-4


@pytest.mark.parametrize("name", ["gptq", "gptq, 8 bits", "fp8"])
def test_bf16_logits_equal_the_rounded_reference(name: str, tmp_path: Path, build: Build, rng: random.Random) -> None:
    packer, config = FORMS[name]
    tiny = Tiny(hidden=128, heads=4, kv_heads=2, intermediate=160, seed=rng.getrandbits(31))
    path = write_quantised(tmp_path / "m", packer, config, tiny).path
    tokens = [rng.randrange(BASE_VOCAB) for _ in range(40)]
    got, expected = (
        Driver(build(path, max_num_seqs=64, backend=backend), rng).prompt_logits(tokens)
        for backend in ("cpu", "reference")
    )
    assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("family", ["qwen2", "phi3", "qwen3_moe", "mixtral"])
@pytest.mark.parametrize("form", ["awq", "fp8"])
def test_biases_fused_matrices_and_experts_are_quantised_too(
    family: str, form: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    packer, config = {"awq": awq(), "fp8": fp8((32, 32))}[form], FORMS[form][1]
    config = {**config, **({"group_size": 32} if form == "awq" else {"weight_block_size": [32, 32]})}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32}
    case = FAMILIES[family]["plain"].with_(**(sizes if "moe" in family else dict(list(sizes.items())[:2])))
    oracle_support.save(oracle_support.build(case, rng.getrandbits(31)), tmp_path / "a")
    quantise(tmp_path / "a", tmp_path / "packed", tmp_path / "floats", packer, config)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "floats", dtype=torch.float32)
    tokens = [rng.randrange(oracle_support.VOCAB) for _ in range(30)]
    driver = Driver(build(tmp_path / "packed", precision="float32", max_num_seqs=64), rng)
    assert np.abs(driver.prompt_logits(tokens) - oracle_support.logits(model, tokens)).max() < 1e-4
