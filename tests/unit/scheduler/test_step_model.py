"""The step-time model finds prices, shrugs off outliers, follows a machine that changes, and forgets nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from octavo.scheduler.step_model import StepLoad, StepTimeModel, decode_load, load_of
from octavo.types import SeqWork, StepPlan
from tests.support.traffic import fresh_random

Load = Callable[[random.Random], StepLoad]


def seconds(load: StepLoad, slower: float = 1.0) -> float:
    """What a step really takes: a position read costs as much as twelve pairs."""
    return slower * (2e-3 + 60e-6 * load.tokens + 150e-6 * load.rows + 100e-9 * load.context + 8e-9 * load.pairs)


def decodes(rng: random.Random) -> StepLoad:
    return decode_load(8, 8 * rng.randrange(100, 1500))


def mixed(rng: random.Random) -> StepLoad:
    rows, count, start = rng.randrange(1, 16), rng.randrange(256), rng.randrange(2000)
    prompts = [(start, count, False)] if count else []
    return load_of([(rng.randrange(1000), 1, True) for _ in range(rows)] + prompts)


def run(model: StepTimeModel, rng: random.Random, make: Load, steps: int, slower: float = 1.0) -> None:
    """Steps with a few per cent of noise, one in fifty held up by something else."""
    for _ in range(steps):
        load = make(rng)
        held_up = rng.uniform(3, 30) if rng.random() < 0.02 else 1.0
        model.observe(load, seconds(load, slower) * rng.uniform(0.95, 1.05) * held_up)


def error(model: StepTimeModel, rng: random.Random, make: Load, slower: float = 1.0) -> float:
    """Relative, mean over loads."""
    loads = [make(rng) for _ in range(50)]
    return sum(abs(model.predict_load(load) / seconds(load, slower) - 1) for load in loads) / len(loads)


def in_most(below: tuple[float, ...], histories: Callable[[random.Random], tuple[float, ...]]) -> None:
    """Errors stay below their bounds in six of nine histories at least.

    Of 300 histories up to one in thirty missed a bound, where steps were held up at the wrong moment; four of nine do
    so once in 7 000 runs.
    """
    rng = fresh_random()
    found = [histories(random.Random(rng.getrandbits(64))) for _ in range(9)]
    good = sum(all(one < most for one, most in zip(errors, below, strict=True)) for errors in found)
    assert good >= 6, found


@pytest.mark.parametrize("slower", [0.05, 1.0, 200.0])
def test_prices_are_found_on_any_machine(slower: float) -> None:
    def history(rng: random.Random) -> tuple[float, ...]:
        model = StepTimeModel()
        assert model.predict_load(decodes(rng)) == 0 and not model.learnt
        run(model, rng, mixed, 300, slower)
        assert all(price >= 0 for price in model.prices)
        return error(model, rng, mixed, slower), error(model, rng, decodes, slower)

    in_most((0.06, 0.1), history)


def test_a_thousand_decodes_do_not_blur_what_a_prompt_costs() -> None:
    def history(rng: random.Random) -> tuple[float, ...]:
        model = StepTimeModel()
        run(model, rng, mixed, 300)
        run(model, rng, decodes, 1000)
        return (error(model, rng, mixed),)

    in_most((0.08,), history)


def test_a_machine_that_slows_down_is_followed_within_some_tens_of_steps() -> None:
    def history(rng: random.Random) -> tuple[float, ...]:
        model = StepTimeModel()
        run(model, rng, mixed, 300)
        run(model, rng, mixed, 60, slower=2.0)
        slow = error(model, rng, mixed, 2.0)
        run(model, rng, mixed, 60, slower=0.7)
        return slow, error(model, rng, mixed, 0.7)

    in_most((0.12, 0.12), history)


def test_one_step_that_was_held_up_teaches_nothing() -> None:
    rng, model = fresh_random(), StepTimeModel()
    run(model, rng, mixed, 300)
    usual = decodes(rng)
    model.observe(usual, seconds(usual))  # the last of those before may have been held up, too
    before = model.prices
    model.observe(decodes(rng), 100.0)
    assert model.prices == before


def test_a_plan_and_its_parts_are_one_load() -> None:
    model = StepTimeModel()
    run(model, fresh_random(), mixed, 20)
    plan = StepPlan(0, (), (SeqWork(0, 10, 1, ((),), True), SeqWork(1, 100, 32, ((),), False)), ())
    load = load_of([(10, 1, True), (100, 32, False)])
    assert load == StepLoad(33, 1, 11 + 132, 11 + 32 * 100 + 32 * 33 // 2)
    assert load_of([(10, 1, True), (20, 1, True)]) == decode_load(2, 32)
    assert model.predict(plan) == model.predict_load(load)
