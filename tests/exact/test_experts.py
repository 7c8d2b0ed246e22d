"""Mixtures of experts in every spelling of their files, quantised too; what no mixture here can do is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from octavo.models.spec import ModelError
from tests.exact.test_architectures import check, draw, prober
from tests.support import oracle, oracle_gguf
from tests.support.driver import Driver
from tests.support.executors import Build
from tests.support.families import FAMILIES
from tests.support.oracle import Case
from tests.support.quantised import Packer, awq, fp8, gptq, write_arrays

MODELS = ("mixtral", "qwen2_moe", "qwen3_moe")
BLOCKS = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_local_experts": 24}
"""Rows of whole blocks, and more experts than a row can choose."""


@pytest.mark.parametrize("family", MODELS)
def test_fused_experts_give_the_same_logits(family: str, tmp_path: Path, build: Build, rng: random.Random) -> None:
    """As transformers keeps them in memory: gate and up of all experts in one tensor, down in another."""
    model = oracle.build(FAMILIES[family]["plain"], rng.getrandbits(31))
    model.save_pretrained(tmp_path, save_original_format=False)
    oracle.write_tokenizer(tmp_path, model.config.vocab_size)
    check(prober(build, tmp_path, rng, precision="float32"), model, rng, (rng.randint(20, 60),))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_quantised_stacks_give_the_files_logits_and_exact_bits(
    kind: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    settings = {**BLOCKS, "num_experts": 24, "num_experts_per_tok": 6, "shared_expert_intermediate_size": 64}
    model = oracle.build(Case("Qwen2Moe", settings), rng.getrandbits(31))
    path = tmp_path / "model.gguf"
    oracle_gguf.write(model, path, gguf.GGMLQuantizationType[kind])
    check(prober(build, path, rng, precision="float32"), model, rng, (rng.randint(20, 60),))
    probe = prober(build, path, rng, threads=2)
    others = (probe, prober(build, path, rng, threads=1, isa="portable", program=False))
    tokens = draw(rng, rng.randint(40, 90))
    expected = probe.logits(tokens)
    assert np.isfinite(expected).all()
    for other in others:
        assert np.array_equal(other.logits(tokens, rng.choice((1, 5, 20)), noise=3), expected)


FORMS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "gptq": (gptq(), {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "awq": (awq(32), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
    "fp8": (fp8(), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_experts_packed_by_quantisers_give_the_logits_of_their_values(
    form: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    """Experts one by one, each a module of its own; routers stay in floats, as the quantisers leave them."""
    packer, quantisation = FORMS[form]
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2}
    case = Case("Mixtral", sizes)
    model = oracle.build(case, rng.getrandbits(31))
    oracle.save(model, tmp_path)
    parts = np.random.default_rng(rng.getrandbits(31))
    stored: dict[str, np.ndarray] = {}
    for name, values in load_file(tmp_path / "model.safetensors").items():
        if ".experts." not in name:
            stored[name] = values
            continue
        packed, exact = packer(values, parts)
        stored |= {f"{name.removesuffix('weight')}{suffix}": part for suffix, part in packed.items()}
        set_expert(model, name, exact)
    write_arrays(tmp_path / "model.safetensors", stored)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": quantisation}))
    check(prober(build, tmp_path, rng, precision="float32"), model, rng, (rng.randint(20, 60),))
    probe = prober(build, tmp_path, rng)
    tokens = draw(rng, 40)
    assert np.array_equal(probe.logits(tokens, 5, noise=3), probe.logits(tokens))


def set_expert(model: Any, name: str, values: np.ndarray) -> None:
    """Puts one stored matrix (w1 gate, w3 up, w2 down) where the model has it."""
    _, _, layer, _, _, expert, part, _ = name.split(".")
    held = model.model.layers[int(layer)].mlp.experts
    inner = held.down_proj.shape[2]
    rows = {"w1": held.gate_up_proj[int(expert), :inner], "w3": held.gate_up_proj[int(expert), inner:]}
    with torch.no_grad():
        rows.get(part, held.down_proj[int(expert)]).copy_(torch.from_numpy(values))


@pytest.mark.parametrize("family", MODELS)
def test_greedy_answers_do_not_depend_on_the_batch(
    family: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    oracle.save(oracle.build(FAMILIES[family]["plain"], rng.getrandbits(31)), tmp_path)
    driver = Driver(build(tmp_path, block_size=32), rng)
    prompts = [draw(rng, rng.randint(1, 50)) for _ in range(5)]
    alone = [driver.solo(prompt, 8, chunk=rng.randint(1, 60)).answer() for prompt in prompts]
    runs = [driver.start(prompt) for prompt in prompts]
    driver.together(runs, [8] * len(runs), rng, 100)
    assert [run.answer() for run in runs] == alone


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("mixtral", {"num_experts": 4}, "num_experts is 4 and num_local_experts 5; they must be equal"),
        ("mixtral", {"num_local_experts": 1}, "num_local_experts is 1; it must be a whole number between 2"),
        ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6; it must be .* between 1 and 5"),
        ("mixtral", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ("qwen2_moe", {"mlp_only_layers": [0.5]}, "mlp_only_layers is .*a list of layer numbers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0; it must be"),
        ("qwen3_moe", {"moe_intermediate_size": 32}, "has shape .*the configuration says"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    family: str, change: dict[str, Any], words: str, tmp_path: Path, build: Build
) -> None:
    oracle.save(oracle.build(FAMILIES[family]["plain"], 1), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=words):
        build(tmp_path)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"expert_gating_func": 2}, "expert_gating_func is 2, which is not supported"),
        ({"leading_dense_block_count": 1}, "leading_dense_block_count is 1"),
        ({"expert_used_count": 6}, "expert_used_count is 6; it must be a whole number of 1 to 5"),
    ],
)
def test_gguf_mixtures_of_another_kind_are_refused(
    extra: dict[str, Any], words: str, tmp_path: Path, build: Build
) -> None:
    path = tmp_path / "model.gguf"
    oracle_gguf.write(oracle.build(FAMILIES["qwen3_moe"]["plain"], 1), path, extra=extra)
    with pytest.raises(ModelError, match=words):
        build(path)
