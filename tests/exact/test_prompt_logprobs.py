"""Log-probabilities of prompts: right, and the same bits whatever the chunks, the batch, the cache and preemption."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.engine.core import EngineCore
from octavo.execution.executor import LocalExecutor
from octavo.types import FinishReason, NewRequest, NewSlot, SamplingParams, TokenLogprobs
from tests.support.executors import Build
from tests.support.tiny import BASE_VOCAB, Tiny, write_hf
from tests.support.traffic import fresh_random

Told = tuple[list[Any], list[int], FinishReason | None]
"""Entries of the prompt, tokens, ending."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("scored") / "tiny", Tiny(max_context=512, tied=False)).path


def plain(entry: TokenLogprobs) -> tuple[float, int, list[int], list[float]]:
    return entry.logprob, entry.rank, entry.top_ids, entry.top_logprobs


def answers(core: EngineCore, requests: Sequence[NewRequest]) -> dict[int, Told]:
    """What every request was told; the prompt's entries must all come before the first token, or with it."""
    for request in requests:
        core.handle(request)
    found: dict[int, Told] = {request.request_id: ([], [], None) for request in requests}
    while core.has_work:
        output = core.step()
        core.validate()
        for delta in output.deltas if output is not None else ():
            assert delta.error is None, delta.error
            scores, tokens, _ = found[delta.request_id]
            assert not (tokens and delta.prompt_logprobs)
            scores += [plain(entry) for entry in delta.prompt_logprobs or ()]
            tokens += delta.tokens
            found[delta.request_id] = (scores, tokens, delta.finish)
    return found


def scored(number: int, prompt: list[int], max_tokens: int = 5, alternatives: int = 3, **fields: Any) -> NewRequest:
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.8 * (number % 2), prompt_logprobs=alternatives, ignore_eos=True
    )
    return NewRequest(request_id=number, prompt=prompt, params=params, seed=number, **fields)


def some_prompts(rng: random.Random, lengths: Sequence[int]) -> list[list[int]]:
    return [[rng.randrange(BASE_VOCAB) for _ in range(length)] for length in lengths]


def logits_of(executor: LocalExecutor, prompt: list[int]) -> np.ndarray:
    blocks = tuple(range(-(-len(prompt) // executor.config.kv.block_size)))
    new = NewSlot(
        slot=0,
        request_id=0,
        tokens=prompt,
        num_prompt=len(prompt),
        params=SamplingParams(max_tokens=1),
        seed=0,
        choice=0,
        cached_blocks=((),),
    )
    return executor.prompt_logits(new, (blocks,)).astype(np.float64)[:, : executor.info.num_tokens]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_they_are_those_of_the_models_logits(build: Build, path: Path, backend: str) -> None:
    executor = build(path, backend=backend, max_num_seqs=64, max_num_batched_tokens=64)
    (prompt,) = some_prompts(fresh_random(), [50])
    logits = logits_of(executor, prompt)
    expected = logits - logits.max(axis=1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(axis=1, keepdims=True))
    ((scores, tokens, reason),) = answers(EngineCore(executor.config, executor), [scored(1, prompt, 0)]).values()
    assert (len(scores), tokens, reason) == (49, [], FinishReason.LENGTH)
    for position, (logprob, rank, ids, values) in enumerate(scores):
        row, token = expected[position], prompt[position + 1]
        order = np.lexsort((np.arange(len(row)), -logits[position]))
        assert logprob == pytest.approx(row[token], abs=2e-5)
        assert ids == order[:3].tolist() and rank == 1 + order.tolist().index(token)
        assert values == pytest.approx(row[order[:3]], abs=2e-5)


def test_chunks_batches_programs_and_replay_change_no_bit(build: Build, path: Path) -> None:
    rng = fresh_random()
    prompts = some_prompts(rng, [1, 2, 33, 90, 130])
    requests = [scored(number, prompt) for number, prompt in enumerate(prompts)]
    executor = build(path, max_num_batched_tokens=512)
    expected = {}
    for request in requests:
        expected |= answers(EngineCore(executor.config, executor), [request])
    assert [len(expected[number][0]) for number in range(5)] == [len(prompt) - 1 for prompt in prompts]
    others = [
        NewRequest(request_id=50 + i, prompt=prompt, params=SamplingParams(max_tokens=40, temperature=1.0), seed=i)
        for i, prompt in enumerate(some_prompts(rng, [5, 70, 20]))
    ]
    for fields in (
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 48, "max_num_seqs": 3},
        {"max_num_batched_tokens": 64, "program": False, "threads": 1},
        {"max_num_batched_tokens": 256, "chunked_prefill": False},
    ):
        small = build(path, **{"max_model_len": 256, **fields})
        core = EngineCore(small.config, small)
        found = answers(core, [*others, *requests])
        assert {number: found[number] for number in range(5)} == expected, fields
        # What others have computed is no hit for what must be computed.
        assert answers(core, requests) == expected, fields
    for number, prompt in enumerate(prompts):
        told = rng.randrange(len(prompt))
        again = NewRequest(request_id=number, prompt=prompt, params=requests[number].params, seed=number, scored=told)
        core = EngineCore(executor.config, executor)
        scores, tokens, reason = expected[number]
        assert answers(core, [again])[number] == (scores[told:], tokens, reason)


def test_a_preempted_request_tells_each_once(build: Build, path: Path) -> None:
    prompts = some_prompts(fresh_random(), [90, 60, 100, 40])
    seen = {}
    for name, fields in {"roomy": {"size_tokens": 4096}, "tight": {"size_tokens": 320}}.items():
        executor = build(path, max_num_batched_tokens=48, max_model_len=256, **fields)
        core = EngineCore(executor.config, executor)
        seen[name] = answers(core, [scored(number, prompt, 70) for number, prompt in enumerate(prompts)])
        assert (core.stats().preemptions > 0) == (name == "tight")
    assert seen["tight"] == seen["roomy"]


def test_a_prompt_that_fills_the_context_can_be_scored_and_no_longer_one(build: Build, path: Path) -> None:
    executor = build(path, max_model_len=64, max_num_batched_tokens=24)
    core = EngineCore(executor.config, executor)
    full, longer = some_prompts(fresh_random(), [64, 65])
    assert len(answers(core, [scored(0, full, 0)])[0][0]) == 63
    core.handle(scored(1, longer, 0))
    output = core.step()
    assert output is not None and "64" in (output.deltas[0].error or "")


def test_other_requests_may_hit_what_a_scored_one_computed(build: Build, path: Path) -> None:
    executor = build(path, max_num_batched_tokens=64)
    core = EngineCore(executor.config, executor)
    (prompt,) = some_prompts(fresh_random(), [100])
    answers(core, [scored(0, prompt)])
    before = core.stats().cached_prompt_tokens
    answers(core, [NewRequest(request_id=1, prompt=prompt, params=SamplingParams(max_tokens=2), seed=0)])
    assert before == 0 and core.stats().cached_prompt_tokens == 96
