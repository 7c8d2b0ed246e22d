"""Models with windows in the whole engine: transformers' tokens, the same bits cached or not, bounded memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.engine.core import EngineCore
from octavo.types import NewRequest, SamplingParams, TokenDelta
from tests.support import oracle
from tests.support.executors import Build
from tests.support.families import FAMILIES

LENGTHS = (7, 8, 9, 16, 17, 40, 100)
OUTPUT = 30
TOLERANCE = 1e-4
CASES = [("mistral", "window 8"), ("mistral", "window 33"), ("gemma3", "plain")]


class Answer:
    """What one request got."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.cached = 0

    def take(self, delta: TokenDelta) -> None:
        assert delta.error is None, delta.error
        self.tokens += delta.tokens
        self.logprobs += [entry.logprob for entry in delta.logprobs or ()]
        self.cached += delta.cached_tokens or 0


class Engine:
    """An engine core that notes how many blocks of its window group are in use."""

    def __init__(self, executor: Any) -> None:
        self.core = EngineCore(executor.config, executor)
        self.windows = [group.window for group in executor.info.kv_groups]
        self.most_used = 0
        self._ids = 0

    def ask(self, prompts: list[list[int]]) -> list[Answer]:
        answers = {}
        for prompt in prompts:
            self._ids += 1
            params = SamplingParams(max_tokens=OUTPUT, temperature=0.0, logprobs=0, ignore_eos=True)
            self.core.handle(NewRequest(request_id=self._ids, prompt=prompt, params=params, seed=0))
            answers[self._ids] = Answer()
        while self.core.has_work:
            output = self.core.step()
            for delta in output.deltas if output is not None else ():
                answers[delta.request_id].take(delta)
            used = [g.pool.used for g, w in zip(self.core.kv.groups, self.windows, strict=True) if w is not None]
            self.most_used = max(self.most_used, *used)
        return list(answers.values())


def assert_expected(model: Any, prompt: list[int], answer: Answer) -> None:
    """Each token is transformers' own choice, or as good a one, and its log-probability is transformers'."""
    logits = oracle.logits(model, prompt + answer.tokens[:-1])[len(prompt) - 1 :].astype(np.float64)
    assert len(answer.tokens) == len(logits) == OUTPUT
    chosen = logits[np.arange(OUTPUT), answer.tokens]
    assert (chosen > logits.max(axis=-1) - 2 * TOLERANCE).all()
    total = np.log(np.exp(logits - logits.max(axis=-1, keepdims=True)).sum(axis=-1)) + logits.max(axis=-1)
    assert np.abs(chosen - total - answer.logprobs).max() < 2 * TOLERANCE


@pytest.mark.parametrize(("family", "name"), CASES)
@pytest.mark.parametrize("budget", [5, 20, 200])
def test_tokens_are_transformers_and_memory_is_bounded(
    family: str, name: str, budget: int, tmp_path: Path, build: Build, rng: random.Random
) -> None:
    """Prompts around the window in chunks of up to `budget`; asked again, they are hits and give the same bits."""
    model = oracle.build(FAMILIES[family][name], rng.getrandbits(31))
    oracle.save(model, tmp_path)
    running = min(4, budget)
    settings = {"max_num_seqs": running, "max_num_batched_tokens": budget, "precision": "float32"}
    engine = Engine(build(tmp_path, **settings))
    prompts = [[rng.randrange(oracle.VOCAB) for _ in range(length)] for length in LENGTHS]
    cold = engine.ask(prompts)
    for prompt, answer in zip(prompts, cold, strict=True):
        assert_expected(model, prompt, answer)
    # A block of the window's positions, one that they reach into, and those that a chunk is about to write.
    most = max(window or 0 for window in engine.windows)
    assert engine.most_used <= running * (2 + (most + budget) // 32), "a window group holds what it has left behind"
    again = engine.ask(prompts)
    (hit,) = engine.ask(prompts[-1:])  # the others' blocks may have been evicted, its own are the latest
    assert hit.cached >= 32
    assert [(a.tokens, a.logprobs) for a in [*again, hit]] == [(a.tokens, a.logprobs) for a in [*cold, cold[-1]]]
    engine.core.validate()
