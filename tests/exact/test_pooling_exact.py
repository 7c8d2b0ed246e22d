"""Pooled hidden states: the same bits whatever surrounds a request, and those of Hugging Face transformers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.engine.core import EngineCore
from octavo.execution.executor import LocalExecutor
from octavo.types import FinishReason, Pooling
from tests.support import oracle
from tests.support.driver import GREEDY, Driver, Run
from tests.support.executors import Build
from tests.support.families import FAMILIES
from tests.support.ledger import make_request


def random_prompt(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(49152) for _ in range(rng.randint(low, high))]


def floats(vector: bytes) -> np.ndarray:
    return np.frombuffer(vector, "<f4")


@pytest.mark.parametrize("pooling", list(Pooling))
def test_alone_in_chunks_and_in_a_noisy_batch(pooling: Pooling, shared: LocalExecutor, rng: random.Random) -> None:
    driver = Driver(shared, rng)
    prompts = [random_prompt(rng, 1, 12), random_prompt(rng, 40, 90)]
    prompts += [random_prompt(rng, 514, 540)] if pooling is Pooling.MEAN else []
    alone = [driver.pool(prompt, pooling) for prompt in prompts]
    for prompt, expected, chunks in zip(prompts, alone, ((1,), (7, 64), (rng.randint(40, 200),)), strict=False):
        for chunk in chunks:
            assert driver.pool(prompt, pooling, chunk) == expected, chunk
    runs = [driver.start(prompt) for prompt in prompts]
    for run in runs:
        run.pooling = pooling
    noise = [driver.start(random_prompt(rng, 1, 60), GREEDY) for _ in range(3)]
    _together(driver, runs, noise, rng)
    assert [run.vector for run in runs] == alone


def _together(driver: Driver, runs: list[Run], noise: list[Run], rng: random.Random) -> None:
    """Batches of random membership until every pooled run has its vector."""
    while left := [run for run in runs if run.pending]:
        works = [(run, rng.randint(1, min(150, run.pending))) for run in rng.sample(left, rng.randint(1, len(left)))]
        works += [(run, run.pending if rng.random() < 0.5 else 1) for run in noise if len(run.out) < 3]
        rng.shuffle(works)
        driver.step(works)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_threads_instruction_sets_and_the_program_switch(
    precision: str, model_path: Path, build: Build, rng: random.Random
) -> None:
    prompt = random_prompt(rng, 3, 4)
    first = None
    variants: list[dict[str, Any]] = [{"threads": 1}, {"threads": 3, "program": False}]
    isas = _native.isas()[1:] if precision == "bf16" else []
    for variant in [*variants, *({"isa": isa} for isa in isas)]:
        executor = build(model_path, precision=precision, **variant)
        driver = Driver(executor, rng)
        vectors = [driver.pool(prompt, pooling) for pooling in Pooling]
        first = first or vectors
        assert vectors == first, variant
        executor.close()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_architecture_gives_its_last_hidden_states(
    family: str, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    """Of a tiny random model in float32, through the whole engine, in chunks."""
    name = rng.choice(list(FAMILIES[family]))
    case = FAMILIES[family][name]
    print(f"the case {name!r}")
    model = oracle.build(case, rng.getrandbits(31))
    oracle.save(model, tmp_path)
    tokens = [rng.randrange(oracle.VOCAB) for _ in range(40)]
    while not oracle.decided(model, tokens):
        tokens = [rng.randrange(oracle.VOCAB) for _ in range(40)]
    rows = oracle.states(model, tokens)
    for backend in ("cpu", "reference"):
        context = {} if case.context is None else {"max_model_len": case.context}
        executor = build(tmp_path, precision="float32", backend=backend, max_num_batched_tokens=16, **context)
        got = served(executor, [(tokens, pooling) for pooling in Pooling])
        for pooling, vector in zip(Pooling, got, strict=True):
            assert np.abs(floats(vector) - oracle.pooled(rows, pooling)).max() < 1e-4, (backend, pooling)


def served(executor: LocalExecutor, asked: Sequence[tuple[list[int], Pooling]]) -> list[bytes]:
    """The vectors that the engine core gives, all asked at once."""
    core = EngineCore(executor.config, executor)
    for number, (tokens, pooling) in enumerate(asked):
        core.handle(make_request(number, tokens, 1, pooling=pooling))
    vectors: dict[int, bytes] = {}
    while core.has_work:
        output = core.step()
        for delta in output.deltas if output is not None else ():
            assert delta.finish is FinishReason.LENGTH and delta.vector is not None, delta
            vectors[delta.request_id] = delta.vector
    return [vectors[number] for number in range(len(asked))]
