"""Intervals cover the truth as often as they say, and a schedule predicts what arithmetic does."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from octavo.bench.predict import StepCost, batching_ratio, schedule_seconds
from octavo.bench.stats import paired_ratio, percentiles, spread
from octavo.bench.workload import constant, exponential, random_workload


def _noisy(rng: np.random.Generator, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Two arms of equal speed on a machine that drifts, with an interruption now and then."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.05, pairs)))
    a, b = (100 * drift * np.exp(rng.normal(0, 0.03, pairs)) for _ in range(2))
    for arm in (a, b):
        hit = rng.random(pairs) < 0.05
        arm[hit] *= rng.uniform(0.4, 0.9, hit.sum())
    return a, b


@pytest.mark.parametrize("pairs", [10, 30])
def test_the_interval_of_equal_arms_covers_one_about_as_often_as_it_says(pairs: int) -> None:
    """200 draws at a true coverage of 0.93 give fewer than 170 once in ten thousand."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    covered = 0
    for _ in range(200):
        ratio = paired_ratio(*_noisy(rng, pairs), seed=seed)
        covered += ratio.low <= 1.0 <= ratio.high
    print(f"{covered} of 200 covered")
    assert covered >= 170


def test_a_slowdown_of_three_percent_is_found_through_drift() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(40):
        a, b = _noisy(rng, 60)
        found += paired_ratio(a, b / 1.03, seed=seed).verdict == "less"
    print(f"{found} of 40 found")
    assert found >= 34


def test_too_few_pairs_are_no_ratio() -> None:
    with pytest.raises(ValueError, match="at least 6 pairs"):
        paired_ratio([1.0] * 5, [1.0] * 5, seed=1)
    same = paired_ratio([2.0] * 8, [3.0] * 8, seed=1)
    assert (same.low, same.value, same.high) == (pytest.approx(1.5),) * 3


def test_spread_and_percentiles() -> None:
    assert spread([1.0, 2.0, 3.0]).median == 2.0
    assert percentiles(list(range(101)))["p99"] == pytest.approx(99)
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_a_schedule_costs_what_counting_its_steps_says() -> None:
    cost = StepCost((1, 4), (1.0, 4.0))
    assert schedule_seconds([3, 1, 1], 2, cost, static=True) == pytest.approx(2 * 1 + 1 * 2 + 1 * 1)
    assert schedule_seconds([3, 1, 1], 2, cost, static=False) == pytest.approx(2 * 1 + 2 * 1 + 1)


def test_the_prediction_is_one_for_equal_answers_and_the_harmonic_number_for_exponential_ones() -> None:
    flat = StepCost((1, 64), (1.0, 1.0))
    even = random_workload(64, 1, constant(50), 1000, 1)
    assert batching_ratio(flat, even, 8) == pytest.approx(1.0)
    varied = random_workload(4000, 1, exponential(400, 1 << 20), 1000, secrets.randbits(20))
    assert batching_ratio(flat, varied, 8) == pytest.approx(2.72, rel=0.1)
