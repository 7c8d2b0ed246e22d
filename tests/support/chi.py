"""Pearson's chi-square test, for draws against the distribution that they should have."""

from __future__ import annotations

import math
from collections.abc import Sequence


def chi_square(counts: Sequence[int], p: Sequence[float]) -> float:
    """The probability of a deviation as large; cells that expect fewer than 5 are put together.

    Wilson and Hilferty's cube root form, good to about a percent of the logarithm far into the tail.
    """
    total = sum(counts)
    cells: list[tuple[float, float]] = []
    rest_seen = rest_expected = 0.0
    for seen, share in zip(counts, p, strict=True):
        if share * total < 5:
            rest_seen += seen
            rest_expected += share * total
        else:
            cells.append((seen, share * total))
    if rest_expected >= 5:
        cells.append((rest_seen, rest_expected))
    elif rest_seen > 30:
        return 0.0
    free = len(cells) - 1
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    z = ((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    return 0.5 * math.erfc(z / math.sqrt(2))
