"""A request's tokens and logprobs are the same bits whatever surrounds it and however the machine runs it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from octavo import _native
from octavo.execution.executor import LocalExecutor
from octavo.types import SamplingParams
from tests.support.driver import GREEDY, Driver, Run
from tests.support.executors import Build

MODES = {
    "greedy": GREEDY,
    "plain": SamplingParams(max_tokens=99, logprobs=2),
    "cool": SamplingParams(max_tokens=99, temperature=0.7, top_p=0.9, logprobs=2),
    "top_k": SamplingParams(max_tokens=99, temperature=1.3, top_k=40, min_p=0.02, logprobs=0),
    "penalties": SamplingParams(
        max_tokens=99,
        temperature=0.9,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        min_tokens=8,
        logit_bias=((5, 3.0), (260, -100.0)),
        logprobs=1,
    ),
}
TOKENS = 8


def random_prompt(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(49152) for _ in range(rng.randint(low, high))]


def solo(
    driver: Driver,
    prompt: list[int],
    rng_seed: int,
    mode: str,
    chunk: int | None = None,
) -> Run:
    return driver.solo(prompt, TOKENS, MODES[mode], seed=rng_seed, chunk=chunk)


def test_alone_and_in_a_noisy_batch(shared: LocalExecutor, rng: random.Random) -> None:
    driver = Driver(shared, rng)
    cases = [(mode, random_prompt(rng, 1, 90), rng.getrandbits(64)) for mode in MODES]
    alone = [solo(driver, prompt, seed, mode).answer() for mode, prompt, seed in cases]
    runs = [driver.start(prompt, MODES[mode], seed=seed) for mode, prompt, seed in cases]
    noise = [driver.start(random_prompt(rng, 1, 60), MODES["plain"], seed=rng.getrandbits(64)) for _ in range(6)]
    lengths = [TOKENS] * len(runs) + [rng.randint(1, 12) for _ in noise]
    driver.together(runs + noise, lengths, rng, 200)
    assert [run.answer() for run in runs] == alone


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_whole_and_in_chunks(chunk: int, shared: LocalExecutor, rng: random.Random) -> None:
    driver = Driver(shared, rng)
    prompt = random_prompt(rng, 65, 80)
    whole = solo(driver, prompt, 7, "cool")
    assert solo(driver, prompt, 7, "cool", chunk).answer() == whole.answer()


def test_a_context_of_several_partitions_in_chunks(shared: LocalExecutor, rng: random.Random) -> None:
    driver = Driver(shared, rng)
    prompt = random_prompt(rng, 514, 560)
    whole = driver.solo(prompt, 3)
    assert driver.solo(prompt, 3, chunk=rng.randint(40, 200)).answer() == whole.answer()


@pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65, 96])
def test_cold_and_on_cached_blocks(length: int, shared: LocalExecutor, rng: random.Random) -> None:
    """Whole blocks of another request's pages serve this one; a fully cached prompt recomputes without a store."""
    driver = Driver(shared, rng)
    prompt = random_prompt(rng, length, length)
    owner = driver.start(prompt, MODES["cool"], seed=3)
    driver.finish(owner, 4)
    full = owner.blocks[: length // 32]
    reader = driver.start(prompt, MODES["cool"], seed=3, cached=full)
    driver.finish(reader, 4)
    assert reader.answer() == owner.answer()
    other = driver.solo(prompt, 3, MODES["plain"], seed=4, cached=full)
    again = driver.solo(prompt, 3, MODES["plain"], seed=4)
    assert other.answer() == again.answer()


def test_a_request_that_enters_again_goes_on_as_if_undisturbed(shared: LocalExecutor, rng: random.Random) -> None:
    driver = Driver(shared, rng)
    for mode in MODES:
        prompt = random_prompt(rng, 3, 40)
        whole = driver.solo(prompt, TOKENS, MODES[mode], seed=11)
        cut = rng.randint(1, TOKENS - 1)
        rest = driver.solo(
            prompt,
            TOKENS,
            MODES[mode],
            seed=11,
            generated=whole.out[:cut],
            chunk=rng.randint(1, 50),
        )
        assert rest.out == whole.out
        assert rest.answer()[1] == whole.answer()[1][cut:]


def answers(driver: Driver, cases: list[tuple[str, list[int], int]], tokens: int) -> list[object]:
    runs = [driver.start(prompt, MODES[mode], seed=seed) for mode, prompt, seed in cases]
    driver.step([(run, run.pending) for run in runs])
    while len(runs[0].out) < tokens:
        driver.step([(run, 1) for run in runs])
    return [run.answer() for run in runs]


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_threads_instruction_sets_and_the_program_switch(
    precision: str, model_path: Path, build: Build, rng: random.Random
) -> None:
    """The portable kernels are slow: the first case alone, a few tokens, meets every op and shape."""
    cases = [(mode, random_prompt(rng, 1, 4), rng.getrandbits(64)) for mode in MODES]
    if precision == "float32":
        cases = cases[:2]
    first = answers(Driver(build(model_path, precision=precision, threads=1)), cases, 3)
    for variant in ({"threads": 2}, {"threads": 3, "program": False}):
        executor = build(model_path, precision=precision, **variant)
        assert answers(Driver(executor, rng), cases, 3) == first, variant
        executor.close()
    for isa in [*_native.isas()[1:], "amx-emulated"]:
        executor = build(model_path, precision=precision, isa=isa)
        assert answers(Driver(executor, rng), cases[1:2], 3) == first[1:2], isa
        executor.close()


def test_block_size_changes_no_bits(model_path: Path, shared: LocalExecutor, build: Build, rng: random.Random) -> None:
    prompt = random_prompt(rng, 100, 140)
    small = Driver(shared, rng).solo(prompt, 4).answer()
    assert Driver(build(model_path, block_size=128), rng).solo(prompt, 4).answer() == small
    assert Driver(build(model_path, paged=False, max_model_len=256), rng).solo(prompt, 4).answer() == small


def test_what_a_page_held_before_is_never_seen(model_path: Path, build: Build, rng: random.Random) -> None:
    executor = build(model_path, size_tokens=256)
    driver = Driver(executor, rng)
    prompt = random_prompt(rng, 20, 70)
    clean = driver.solo(prompt, 4).answer()
    executor.forward.pools[0].fill(float("nan"))
    assert driver.solo(prompt, 4).answer() == clean
