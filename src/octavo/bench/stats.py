"""What measured numbers say: medians with their spread, and ratios with an interval that is honest about noise.

Two arms are measured in pairs, one right after the other, so that a machine that drifts carries both along. The
ratio is the trimmed mean of the pairs' log ratios; its 95 % interval comes from the studentised bootstrap (Efron and
Tibshirani 1993, chapter 12; Hall 1988), which keeps its coverage for a few dozen pairs where plain percentiles do not.
Resamples of a handful of pairs are nearly constant too often for that: below `FEW` pairs the interval is Student's for
trimmed means (Tukey and McLaughlin 1963).
Nothing is a result whose interval contains 1. Off switch: none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

TRIM = 0.2
"""Share of the pairs cut off at each end: what an interruption does to one pair is not the setting's effect."""
RESAMPLES = 4000
FEW = 20
LEAST_PAIRS = 6


@dataclass(frozen=True)
class Spread:
    """A sample in three numbers, and its size."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    count: int

    @property
    def relative(self) -> float:
        """The quartiles' distance as a share of the median."""
        return (self.high - self.low) / self.median if self.median else math.inf


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError where there is nothing to describe."""
    if not values:
        raise ValueError("no values were measured")
    low, median, high = np.quantile(np.asarray(values, np.float64), (0.25, 0.5, 0.75))
    return Spread(float(median), float(low), float(high), len(values))


@dataclass(frozen=True)
class Ratio:
    """How many times as much of B as of A, with its 95 % interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """ "more", "less", or "no difference seen": the interval contains 1."""
        if self.low > 1.0:
            return "more"
        return "less" if self.high < 1.0 else "no difference seen"

    def text(self) -> str:
        """For a person."""
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f}, {self.pairs} pairs): {self.verdict}"


def paired_ratio(a: Sequence[float], b: Sequence[float], seed: int) -> Ratio:
    """B / A of pairs measured side by side. Both are positive; ValueError below LEAST_PAIRS pairs."""
    if len(a) != len(b) or len(a) < LEAST_PAIRS:
        raise ValueError(f"{len(a)} and {len(b)} measurements; at least {LEAST_PAIRS} pairs are needed")
    logs = np.log(np.asarray(b, np.float64)) - np.log(np.asarray(a, np.float64))
    middle, error = _trimmed(logs[None, :])
    if len(logs) < FEW:
        kept = len(logs) - 2 * int(len(logs) * TRIM)
        value, half = float(middle[0]), _STUDENT[kept - 2] * float(error[0])
        return Ratio(math.exp(value), math.exp(value - half), math.exp(value + half), len(logs))
    rng = np.random.default_rng(seed)
    picks = logs[rng.integers(0, len(logs), (RESAMPLES, len(logs)))]
    means, errors = _trimmed(picks)
    usable = errors > 0
    if not usable.any() or error[0] == 0:
        value = math.exp(middle[0])
        return Ratio(value, value, value, len(logs))
    scores = (means[usable] - middle[0]) / errors[usable]
    low, high = np.quantile(scores, (0.025, 0.975))
    value = float(middle[0])
    return Ratio(math.exp(value), math.exp(value - high * error[0]), math.exp(value - low * error[0]), len(logs))


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % points of Student's t with 1, 2, ... degrees of freedom."""


def _trimmed(rows: F64) -> tuple[F64, F64]:
    """Trimmed mean and its standard error (Yuen 1974) of each row."""
    count = rows.shape[1]
    cut = int(count * TRIM)
    ordered = np.sort(rows, axis=1)
    kept = ordered[:, cut : count - cut]
    winsorised = np.clip(ordered, kept[:, :1], kept[:, -1:])
    deviation = winsorised.std(axis=1, ddof=1)
    error = deviation / ((1 - 2 * TRIM) * math.sqrt(count))
    return kept.mean(axis=1), error


def percentiles(values: Sequence[float], wanted: Sequence[int] = (50, 90, 95, 99)) -> dict[str, float]:
    """{"p50": ..}; empty for no values."""
    if not values:
        return {}
    found = np.percentile(np.asarray(values, np.float64), wanted)
    return {f"p{q}": float(value) for q, value in zip(wanted, found, strict=True)}
