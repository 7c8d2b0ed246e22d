"""Tiny random models of every architecture against transformers: the same logits at every position.

Whole prompts and chunks, alone and in a noisy batch, from the cache or not, from safetensors and from GGUF; and on
the bf16 path the same bits in each of these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.support import oracle, oracle_gguf
from tests.support.executors import Build
from tests.support.families import FAMILIES, WINDOWS, in_gguf
from tests.support.probe import Probe

TOLERANCE = 1e-4
ROWS = 256
"""Of a step: a prompt and its noise fit."""

CASES = [(family, name) for family in FAMILIES for name in FAMILIES[family]]
LENGTHS = (7, 8, 9, 16, 17, 40)
CHUNKS = (None, 5, 20)
QUANTS = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""Of GGUF files; what gguf can write."""


def prober(build: Build, path: Path, rng: random.Random, **changes: Any) -> Probe:
    return Probe(build(path, **{"max_num_seqs": ROWS, "max_num_batched_tokens": ROWS, **changes}), rng)


def engine(family: str, name: str) -> dict[str, Any]:
    """What the case asks of the engine's configuration."""
    context = FAMILIES[family][name].context
    return {} if context is None else {"max_model_len": context}


def draw(rng: random.Random, length: int, model: Any = None) -> list[int]:
    """With a model, tokens whose experts rounding cannot change."""
    while True:
        tokens = [rng.randrange(oracle.VOCAB) for _ in range(length)]
        if model is None or oracle.decided(model, tokens):
            return tokens


def assert_near(got: np.ndarray, expected: np.ndarray, what: object) -> None:
    worst = float(np.abs(got - expected).max())
    assert worst < TOLERANCE, f"{what}: {worst} at position {int(np.abs(got - expected).max(axis=1).argmax())}"


def check(probe: Probe, model: Any, rng: random.Random, lengths: Sequence[int]) -> None:
    """Whole, in chunks with others, and over blocks that another request has written."""
    for length in lengths:
        tokens = draw(rng, length, model)
        expected = oracle.logits(model, tokens)
        assert_near(probe.logits(tokens), expected, f"whole, {length} tokens")
        chunk = rng.choice((1, 5, 20, 33))
        assert_near(probe.logits(tokens, chunk, noise=2), expected, f"chunks of {chunk}, {length} tokens")
        blocks = length // 32
        if blocks:
            first, got = probe.cached_logits(tokens, blocks, chunk, noise=1)
            assert_near(got, expected[first:], f"{blocks} cached blocks, {length} tokens")


@pytest.mark.parametrize(("family", "name"), CASES)
def test_float32_logits_equal_transformers(
    family: str, name: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    model = oracle.build(FAMILIES[family][name], rng.getrandbits(31))
    oracle.save(model, tmp_path)
    if rng.random() < 0.5:
        print("in the older spelling")
        oracle.older_spelling(tmp_path)
    settings = {"precision": "float32", **engine(family, name)}
    native = prober(build, tmp_path, rng, attention=rng.choice(("tiled", "naive")), **settings)
    check(native, model, rng, (1, rng.randint(2, 60), rng.randint(65, 100)))
    check(prober(build, tmp_path, rng, backend="reference", **settings), model, rng, (rng.randint(34, 60),))


@pytest.mark.parametrize(("family", "name"), [case for case in CASES if case in WINDOWS])
def test_windows_hold_exactly_their_positions(
    family: str, name: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    """At lengths around the window, in chunks that are smaller and greater, cold and cached, with blocks given back."""
    model = oracle.build(FAMILIES[family][name], rng.getrandbits(31))
    oracle.save(model, tmp_path)
    probes = {
        backend: prober(build, tmp_path, rng, backend=backend, precision="float32") for backend in ("cpu", "reference")
    }
    for length in LENGTHS:
        tokens = draw(rng, length, model)
        expected = oracle.logits(model, tokens)
        for backend, probe in probes.items():
            for chunk in CHUNKS:
                got = probe.logits(tokens, chunk, noise=rng.randint(0, 2))
                assert_near(got, expected, f"{backend}, {length} tokens in chunks of {chunk}")
    for length, blocks in ((40, 1), (100, 1), (100, 3)):
        tokens = draw(rng, length, model)
        expected = oracle.logits(model, tokens)
        for backend, probe in probes.items():
            for chunk in CHUNKS:
                first, got = probe.cached_logits(tokens, blocks, chunk, noise=2)
                assert_near(got, expected[first:], f"{backend}, {blocks} cached blocks, chunks of {chunk}")


@pytest.mark.parametrize(("family", "name"), [case for case in CASES if in_gguf(*case)])
def test_gguf_files_give_the_same_logits(
    family: str, name: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    """As converters write them; in a quantised type transformers computes with what the file holds."""
    case = FAMILIES[family][name]
    if rng.random() < 0.7:
        case = in_blocks(case)
    model = oracle.build(case, rng.getrandbits(31))
    whole = all(parameter.shape[-1] % 32 == 0 for parameter in model.parameters() if parameter.ndim > 1)
    quant = gguf.GGMLQuantizationType[rng.choice(QUANTS)] if whole else gguf.GGMLQuantizationType.F32
    print(f"in {quant.name}")
    path = tmp_path / "model.gguf"
    oracle_gguf.write(model, path, quant)
    probe = prober(build, path, rng, precision="float32", **engine(family, name))
    check(probe, model, rng, (rng.randint(1, 60), rng.randint(65, 100)))


def in_blocks(case: oracle.Case) -> oracle.Case:
    """The case with rows that quantised blocks can fill, where its own sizes leave that open."""
    if "hidden_size" in case.settings or "longrope" in str(case.settings):
        return case
    experts = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    sizes = {"hidden_size": 64, "intermediate_size": 96, **{k: v for k, v in experts.items() if k in case.settings}}
    return case.with_(**sizes)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_bf16_bits_do_not_depend_on_chunks_batch_cache_or_threads(
    family: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    name = rng.choice(list(FAMILIES[family]))
    print(f"the case {name!r}")
    oracle.save(oracle.build(FAMILIES[family][name], rng.getrandbits(31)), tmp_path)
    settings = engine(family, name)
    probe = prober(build, tmp_path, rng, threads=1, **settings)
    others = [
        prober(build, tmp_path, rng, threads=2, program=False, **settings),
        prober(build, tmp_path, rng, threads=1, isa="portable", **settings),
    ]
    for length in (rng.randint(1, 64), rng.randint(65, 100)):
        tokens = draw(rng, length)
        expected = probe.logits(tokens)
        assert np.isfinite(expected).all()
        for other in (probe, *others):
            chunk = rng.choice((1, 5, 20, 33))
            got = other.logits(tokens, chunk, noise=3)
            assert np.array_equal(got, expected), f"{length} tokens in chunks of {chunk}"
        first, got = probe.cached_logits(tokens, length // 32, rng.choice(CHUNKS), noise=2)
        assert np.array_equal(got, expected[first:]), f"{length} tokens with cached blocks"
