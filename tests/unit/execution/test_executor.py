"""The executor on a tiny model and both back ends: plans are obeyed, and one request's trouble stays its own."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo.config import (
    ConfigError,
    EngineConfig,
    ExecutionConfig,
    KVConfig,
    ModelConfig,
    SchedulerConfig,
)
from octavo.execution.executor import LocalExecutor
from octavo.execution.factory import build_executor
from octavo.types import NewSlot, SamplingParams, SeqWork, StepPlan
from tests.support.driver import GREEDY, Driver
from tests.support.tiny import Tiny, write_hf


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    write_hf(tmp_path, Tiny(vocab=272))
    return EngineConfig(
        model=ModelConfig(path=str(tmp_path)),
        kv=KVConfig(size_tokens=1024),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        execution=ExecutionConfig(backend="reference"),
    )


@pytest.fixture(params=["reference", "cpu"])
def executor(request: pytest.FixtureRequest, config: EngineConfig) -> Iterator[LocalExecutor]:
    made = build_executor(
        replace(config, execution=ExecutionConfig(backend=request.param)),
        lambda what, fraction: None,
    )
    yield made
    made.close()
    made.close()


def new_slot(tokens: list[int], params: SamplingParams = GREEDY, slot: int = 0) -> NewSlot:
    return NewSlot(
        slot=slot,
        request_id=slot,
        tokens=tokens,
        num_prompt=len(tokens),
        params=params,
        seed=1,
        choice=0,
        cached_blocks=((),),
    )


def test_it_says_what_it_is_and_what_it_takes(executor: LocalExecutor) -> None:
    info = executor.info
    assert (info.architecture, info.vocab_size, info.eos_token_ids) == (
        "llama",
        272,
        (2,),
    )
    assert info.kv_groups[0].layers == (0, 1)
    assert executor.num_blocks == (32,)
    assert executor.config.model.max_model_len == 256
    assert [line.split()[0] for line in executor.report[:6]] == [
        "weights",
        "KV",
        "workspace",
        "free",
        "fits",
        "kernels",
    ]


def test_numerics_id_ignores_what_changes_no_bits(config: EngineConfig) -> None:
    def numerics(**execution: object) -> str:
        changed = replace(config, execution=ExecutionConfig(backend="cpu", **execution))
        executor = build_executor(changed, lambda what, fraction: None)
        executor.close()
        return executor.info.numerics_id

    assert numerics(threads=1) == numerics(threads=2, program=False) != numerics(attention="naive")


def test_released_slots_end_before_new_ones_begin(executor: LocalExecutor) -> None:
    first = executor.submit(StepPlan(0, (new_slot([5, 6, 7]),), (SeqWork(0, 0, 3, ((0,),), True),), ())).result()
    second = executor.submit(StepPlan(1, (new_slot([5, 6, 7]),), (SeqWork(0, 0, 3, ((1,),), True),), (0,))).result()
    assert first.outputs == second.outputs and second.step_id == 1
    assert executor.submit(StepPlan(2, (), (), (0,))).result().outputs == ()
    assert len(executor.slots) == 0


def test_a_partial_prompt_yields_nothing(executor: LocalExecutor) -> None:
    result = executor.submit(StepPlan(0, (new_slot([5, 6, 7]),), (SeqWork(0, 0, 2, ((0,),), False),), ())).result()
    assert result.outputs[0].tokens == () and result.outputs[0].error is None and result.seconds > 0


BAD = {
    "a token id outside the vocabulary": ([5, 272], GREEDY, "272 is outside"),
    "a negative token id": ([-1], GREEDY, "-1 is outside"),
    "too many alternatives": (
        [5],
        SamplingParams(max_tokens=1, logprobs=1000),
        "logprobs 1000 is out of range",
    ),
    "a temperature that is no number": ([5], SamplingParams(max_tokens=1, temperature=float("nan")), "temperature nan"),
    "no probability at all": ([5], SamplingParams(max_tokens=1, top_p=0.0), "top_p 0.0 is out of range"),
    "a bias for no token": (
        [5],
        SamplingParams(max_tokens=1, logit_bias=((999, 1.0),)),
        "logit_bias",
    ),
    "a value that is no number": (
        [5],
        SamplingParams(max_tokens=1, temperature=None),
        "cannot be run",
    ),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_cannot_be_set_up_fails_alone(name: str, executor: LocalExecutor) -> None:
    tokens, params, message = BAD[name]
    driver = Driver(executor)
    alone = driver.solo([9, 8, 7], 2).out
    good, bad = driver.start([9, 8, 7]), driver.start(tokens, params)
    result = driver.step([(bad, len(tokens)), (good, 3)])
    assert message in (result.outputs[0].error or ""), result
    assert driver.step([(good, 1)]).outputs[0].error is None
    assert good.out == alone


def test_nan_logits_fail_the_rows_that_hold_them(executor: LocalExecutor) -> None:
    """A request whose cached pages are damaged, beside one whose pages are sound."""
    driver = Driver(executor)
    alone = driver.solo([9, 8, 7], 2).out
    victim = driver.start([3] * 40)
    driver.step([(victim, 40)])
    poison(executor, victim.blocks[0])
    good = driver.start([9, 8, 7])
    result = driver.step([(good, 3), (victim, 1)])
    assert "NaN" in (result.outputs[1].error or ""), result
    assert driver.step([(good, 1)]).outputs[0].error is None
    assert good.out == alone


def poison(executor: LocalExecutor, block: int) -> None:
    forward = executor.forward
    if hasattr(forward, "pools"):
        forward.pools[0].fill(float("nan"))
    else:
        forward._ops._pages[0].value[block] = np.nan  # type: ignore[attr-defined]


def test_no_token_allowed_is_an_error_of_that_request(executor: LocalExecutor) -> None:
    everything = SamplingParams(max_tokens=4, logit_bias=tuple((i, float("-inf")) for i in range(272)))
    driver = Driver(executor)
    good, bad = driver.start([4, 5]), driver.start([4, 5], everything)
    result = driver.step([(good, 2), (bad, 2)])
    assert result.outputs[0].tokens
    assert result.outputs[1].error == "no token may be drawn: every one is forbidden by logit_bias"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinite_logits_are_the_models_fault(config: EngineConfig, executor: LocalExecutor) -> None:
    """The last norm is so large that products overflow; the request asks for nothing special."""
    folder = Path(config.model.path)
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] = np.full_like(weights["model.norm.weight"], 1e38)
    save_file(weights, path)
    backend = ExecutionConfig(backend=executor.config.execution.backend)
    made = build_executor(replace(config, execution=backend), lambda what, fraction: None)
    result = made.submit(StepPlan(0, (new_slot([5, 6, 7]),), (SeqWork(0, 0, 3, ((0,),), True),), ())).result()
    made.close()
    error = result.outputs[0].error or ""
    assert "logits for this request are not" in error and "weights" in error and "logit_bias" not in error, error


def test_min_tokens_bans_what_would_end_the_request(executor: LocalExecutor) -> None:
    """A bias makes the end-of-sequence id and a stop id certain; only ignore_eos lifts the ban from the former."""
    bias = ((2, 1000.0), (7, 500.0))

    def first(**fields: object) -> int:
        params = SamplingParams(max_tokens=9, temperature=0.0, logit_bias=bias, **fields)
        return Driver(executor).solo([5, 6], 1, params).out[0]

    assert first() == 2
    assert first(min_tokens=3) == 7
    assert first(min_tokens=3, stop_token_ids=(7,)) not in (2, 7)
    assert first(min_tokens=3, stop_token_ids=(7,), ignore_eos=True) == 2
    params = SamplingParams(max_tokens=9, temperature=0.0, logit_bias=bias, min_tokens=3)
    assert Driver(executor).solo([5, 6], 5, params).out == [7, 7, 7, 2, 2]
    assert Driver(executor).solo([5, 6], 3, params, generated=[7, 7]).out == [7, 7, 7]


def test_penalties_count_prompt_and_output(executor: LocalExecutor) -> None:
    bias = ((10, 5000.0), (11, 4000.0), (12, 3000.0))

    def tokens(prompt: list[int], **fields: float) -> list[int]:
        params = SamplingParams(max_tokens=9, temperature=0.0, logit_bias=bias, **fields)
        return Driver(executor).solo(prompt, 4, params).out

    assert tokens([5]) == [10, 10, 10, 10]
    assert tokens([5], presence_penalty=2500.0) == [10, 11, 12, 10]
    assert tokens([10], presence_penalty=2500.0)[0] == 10
    assert tokens([5], frequency_penalty=700.0) == [10, 10, 11, 10]
    # A tenth of 4000 + x is less than 3000; the bias comes after the penalty, which therefore changes the logit alone.
    assert tokens([10], repetition_penalty=10.0) == [10, 10, 10, 10]


def test_ids_beyond_the_tokeniser_are_never_drawn(executor: LocalExecutor) -> None:
    """The embedding is padded: 272 rows for fewer known ids."""
    known = executor.info.num_tokens
    assert known < 272
    hot = SamplingParams(max_tokens=200, temperature=50.0)
    out = Driver(executor).solo([5], 150, hot, seed=secrets.randbits(63)).out
    assert max(out) < known


def test_batches_in_any_order_give_each_its_own_answer(executor: LocalExecutor) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    driver = Driver(executor, rng)
    params = SamplingParams(max_tokens=99, temperature=1.0, top_p=0.95, presence_penalty=0.4)
    prompts = [[rng.randrange(272) for _ in range(rng.randint(1, 60))] for _ in range(6)]
    alone = [driver.solo(p, 5, params, seed=i).out for i, p in enumerate(prompts)]
    runs = [driver.start(p, params, seed=i) for i, p in enumerate(prompts)]
    driver.together(runs, [5] * len(runs), rng, 64)
    assert [run.out for run in runs] == alone


def test_refusals_name_the_flag(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="--max-model-len"):
        build_executor(
            replace(config, model=replace(config.model, max_model_len=10**9)),
            lambda what, fraction: None,
        )
