"""On real kernels a preempted request gives the bits of one that was not, whatever it kept and whatever its window."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.types import Executor, NewRequest, SamplingParams
from tests.support.executors import Build
from tests.support.tiny import Tiny, write_hf
from tests.support.traffic import fresh_random

Outcome = dict[int, tuple[list[int], list[float]]]


def _answers(config: EngineConfig, executor: Executor, prompts: list[list[int]]) -> tuple[Outcome, int, int]:
    """Tokens and log-probabilities, preemptions, recomputed positions."""
    core = EngineCore(config, executor)
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=70, temperature=0.8 * (number % 2), logprobs=1, ignore_eos=True)
        core.handle(NewRequest(request_id=number, prompt=prompt, params=params, seed=number))
    found: Outcome = {number: ([], []) for number in range(len(prompts))}
    while core.has_work:
        output = core.step()
        core.validate()
        for delta in output.deltas if output is not None else ():
            assert delta.error is None, delta.error
            found[delta.request_id][0].extend(delta.tokens)
            found[delta.request_id][1].extend(value for entry in delta.logprobs or () for value in entry.top_logprobs)
    stats = core.stats()
    return found, stats.preemptions, stats.recomputed_tokens


def _prompts(rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(10, 60) for _ in range(rng.choice([40, 64, 90]))] for _ in range(4)]


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_partly_and_wholly_preempted_requests_give_the_same_bits(build: Build, tmp_path: Path, precision: str) -> None:
    path = write_hf(tmp_path / "tiny", Tiny(max_context=512, tied=False)).path
    prompts = _prompts(fresh_random())
    seen = {}
    for name, fields in {
        "roomy": {"size_tokens": 4096},
        "partial": {"size_tokens": 320, "prefix_cache": False},
        "whole": {"size_tokens": 320, "prefix_cache": False, "partial_preemption": False},
        "cached": {"size_tokens": 320},
    }.items():
        executor = build(path, precision=precision, max_num_batched_tokens=48, max_model_len=256, **fields)
        seen[name] = _answers(executor.config, executor, prompts)
    assert seen["roomy"][1] == 0 and min(seen[name][1] for name in ("partial", "whole", "cached")) > 0
    assert seen["partial"][2] <= seen["whole"][2], "what is kept is not computed again"
    assert all(seen[name][0] == seen["roomy"][0] for name in ("partial", "whole", "cached"))
