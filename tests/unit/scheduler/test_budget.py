"""The chunk budget keeps a step within the target where it can, and never starves prompts where it cannot."""

from __future__ import annotations

from octavo.config import SchedulerConfig
from octavo.scheduler.budget import FixedBudget, TargetBudget, make_budget
from octavo.scheduler.step_model import StepTimeModel, decode_load, load_of
from octavo.types import SeqOutput, StepResult
from tests.support.traffic import fresh_random
from tests.unit.scheduler.test_scheduler import Bench
from tests.unit.scheduler.test_step_model import mixed, run, seconds


def test_without_a_target_the_budget_is_whole() -> None:
    assert isinstance(make_budget(SchedulerConfig(), StepTimeModel()), FixedBudget)
    assert isinstance(make_budget(SchedulerConfig(target_itl_ms=40), StepTimeModel()), TargetBudget)


def _steps(target_ms: float, streams: int = 8, prompt: int = 2000) -> list[tuple[int, float]]:
    """(tokens, seconds) of the steps in which a long prompt is computed beside streams that decode."""
    rng = fresh_random()
    bench = Bench(blocks=512, target_itl_ms=target_ms)
    run(bench.scheduler.model, rng, mixed, 200)
    for stream in range(streams):
        bench.add(stream, 20, 2000, ignore_eos=True)
    for _ in range(20):
        _step(bench)
    long = bench.add(100, prompt, 4)
    found = []
    while not long.num_generated:
        found.append(_step(bench))
    return found


def _step(bench: Bench) -> tuple[int, float]:
    plan = bench.plan()
    load = load_of((work.start, work.count, work.sample) for work in plan.work)
    outputs = tuple(SeqOutput((7,)) if work.sample else SeqOutput() for work in plan.work)
    bench.scheduler.retire(StepResult(plan.step_id, outputs, seconds(load)))
    return load.tokens, seconds(load)


def test_steps_fill_the_target_and_stay_below_it() -> None:
    for target in (15.0, 25.0):
        times = [took for _, took in _steps(target)][:-1]
        assert max(times) < target / 1000
        assert min(times) > 0.7 * target / 1000, "the room is used"


def test_a_target_that_decodes_alone_miss_does_not_starve_prompts() -> None:
    steps = _steps(0.5)
    assert {tokens for tokens, _ in steps[:-1]} == {8 + 16}


def test_nobody_decodes_so_the_budget_is_whole() -> None:
    bench = Bench(blocks=512, target_itl_ms=1.0, max_num_batched_tokens=256)
    bench.add(1, 600)
    assert bench.step()[0][1] == 256


def test_before_anything_is_learnt_chunks_are_small() -> None:
    model = StepTimeModel()
    assert not model.learnt
    bench = Bench(blocks=512, target_itl_ms=10.0)
    request = bench.add(1, 8)
    bench.step()
    budget = TargetBudget(512, 0.01, model)
    assert budget.of([request], []) == (33, 32)
    for _ in range(8):
        model.observe(decode_load(1, 10), 0.001)
    assert budget.of([request], []) == (33, 32), "what a prompt costs was not seen yet"
    for _ in range(8):
        model.observe(load_of([(9, 1, True), (0, 64, False)]), 0.002)
    assert budget.of([request], []).prompts == 130, "no more than twice the largest step seen"
