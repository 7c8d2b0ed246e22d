"""Random Llamas of awkward sizes, written by transformers and compared with it: any head size, tied or not, biases."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from octavo.models.spec import ModelError
from tests.support.driver import Driver
from tests.support.executors import Build

VOCAB = 101


@dataclass(frozen=True)
class Shape:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = True
    bias: bool = False


SHAPES = {
    "head 80": Shape(hidden=160, heads=2, kv_heads=1, head_dim=80),
    "head 96": Shape(hidden=192, heads=2, kv_heads=2, head_dim=96, tied=False),
    "head 40": Shape(hidden=120, heads=3, kv_heads=1, head_dim=40),
    "head 32, hidden 100": Shape(hidden=100, heads=4, kv_heads=2, head_dim=32, tied=False),
    "head 64, 9 heads": Shape(hidden=72, heads=9, kv_heads=3, head_dim=64),
    "head 16, biases": Shape(hidden=48, heads=4, kv_heads=2, head_dim=16, bias=True),
}


def write(folder: Path, shape: Shape, seed: int) -> Any:
    """Saves the model and a tokeniser of as many words, returns the model."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=72,
        num_hidden_layers=2,
        vocab_size=VOCAB,
        max_position_embeddings=1024,
        tie_word_embeddings=shape.tied,
        attention_bias=shape.bias,
        mlp_bias=shape.bias,
        rms_norm_eps=1e-5,
        initializer_range=0.08,
        eos_token_id=2,
        bos_token_id=1,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.2)
    model.save_pretrained(folder, safe_serialization=True)
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "w2", "bos_token": "w1"}))
    return model


def expected_logits(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def worst(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max())


@pytest.mark.parametrize("name", list(SHAPES))
def test_float32_logits_equal_transformers(name: str, tmp_path: Path, build: Build, rng: random.Random) -> None:
    model = write(tmp_path, SHAPES[name], rng.getrandbits(31))
    settings = {
        "precision": "float32",
        "max_num_seqs": 544,
        "max_num_batched_tokens": 544,
    }
    cpu = Driver(build(tmp_path, **settings), rng)
    reference = Driver(build(tmp_path, backend="reference", **settings), rng)
    naive = Driver(build(tmp_path, attention="naive", **settings), rng)
    for length in (1, 33, 530):
        tokens = [rng.randrange(VOCAB) for _ in range(length)]
        expected = expected_logits(model, tokens)
        for driver in (cpu, reference, naive)[: 1 if length > 500 else 3]:
            assert worst(driver.prompt_logits(tokens), expected) < 1e-4


@pytest.mark.parametrize("name", list(SHAPES))
def test_bf16_logits_equal_the_rounded_reference(name: str, tmp_path: Path, build: Build, rng: random.Random) -> None:
    """Few layers: what differs is the order of sums, which now and then rounds a value the other way."""
    write(tmp_path, SHAPES[name], rng.getrandbits(31))
    cpu = Driver(build(tmp_path, max_num_seqs=64), rng)
    reference = Driver(build(tmp_path, backend="reference", max_num_seqs=64), rng)
    for length in (1, 40, 64):
        tokens = [rng.randrange(VOCAB) for _ in range(length)]
        expected, got = reference.prompt_logits(tokens), cpu.prompt_logits(tokens)
        assert worst(got, expected) < 0.02 * float(np.abs(expected).max())


@pytest.mark.parametrize("name", list(SHAPES))
def test_greedy_tokens_are_exact_in_chunks_and_batches(
    name: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    write(tmp_path, SHAPES[name], rng.getrandbits(31))
    driver = Driver(build(tmp_path, block_size=32), rng)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 80))] for _ in range(5)]
    alone = [driver.solo(prompt, 10, chunk=rng.randint(1, 90)).answer() for prompt in prompts]
    runs = [driver.start(prompt) for prompt in prompts]
    driver.together(runs, [10] * len(runs), rng, 100)
    assert [run.answer() for run in runs] == alone


def rewrite(folder: Path, head: Any, tied: bool) -> None:
    """Stores `head` (None: no head) and says whether it is tied."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    if head is not None:
        tensors["lm_head.weight"] = head.clone().contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))


def test_a_tied_head_may_be_stored_too(tmp_path: Path, build: Build, rng: random.Random) -> None:
    """Equal to the embedding it changes nothing; where the model is not tied it is used, and must be there."""
    model = write(tmp_path, SHAPES["head 40"], rng.getrandbits(31))
    tokens = [rng.randrange(VOCAB) for _ in range(20)]
    embedding = model.get_input_embeddings().weight.detach()
    settings = {"precision": "float32", "max_num_seqs": 64}
    expected = expected_logits(model, tokens)
    rewrite(tmp_path, embedding, tied=True)
    assert worst(Driver(build(tmp_path, **settings)).prompt_logits(tokens), expected) < 1e-4
    rewrite(tmp_path, embedding * -2, tied=False)
    assert worst(Driver(build(tmp_path, **settings)).prompt_logits(tokens), expected * -2) < 2e-4
    rewrite(tmp_path, None, tied=False)
    with pytest.raises(ModelError, match="lm_head"):
        build(tmp_path, **settings)
