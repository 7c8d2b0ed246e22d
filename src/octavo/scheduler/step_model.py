"""How long a step takes: a model learnt from the steps that have run.

    seconds = fixed + token * positions computed + row * rows of logits + context * positions of context read
              + pair * (position computed, position it sees)

A part of a step reads its context once, whatever it computes over it: that is what a decode pays for. A chunk of c
positions over n others reads n + c and has about c * (n + c / 2) pairs, which cost far less each, for the rows of a
chunk share what is read. Streams that only decode cannot tell the two apart; the units below give what is not told
apart to the reading.

The five prices are fitted by recursive least squares with forgetting over relative errors, so a short step counts as
much as a long one and the last few hundred steps count most. Three guards:

- an error far beyond the usual is passed over unless the step before erred the same way: a stolen core is no new price;
- three such steps in a row are a new machine: the prices become uncertain again and are learnt anew within some steps;
- what is forgotten is bounded, so that a thousand decode steps do not blur what a prompt costs.

Life: one a scheduler; `observe` for every step that retires. Read by the chunk budget (budget.py), by the server's
Retry-After and by the judgement of a stuck step, and told in the metrics. It decides nothing itself, so it cannot be
switched off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.types import StepPlan, StepPrices

LEARNT = 8
"""Steps after which `predict` is worth something."""
_UNITS = (1.0, 64.0, 16.0, 16384.0, 65536.0)
"""Of the features, so that all are about 1."""
_COUNT = len(_UNITS)
_FORGET = 0.99
_NOISE = 0.01
"""Variance of a step's relative error."""
_UNUSUAL = 4.0
"""Times the usual error."""
_STREAK = 3
_LEAST = 1e-6
"""Seconds; no step is shorter."""

Row = list[float]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step has to do, as far as its time depends on it."""

    tokens: int
    """Positions computed."""
    rows: int
    """Rows of logits: tokens drawn, and prompt tokens scored."""
    context: int
    """Positions that attention reads, once for each part of the step."""
    pairs: int
    """Positions that it looks at, summed over the positions computed."""


def decode_load(count: int, context: int) -> StepLoad:
    """Of so many decodes over contexts of so many positions together, the new ones included."""
    return StepLoad(count, count, context, context)


def load_of(parts: Iterable[tuple[int, int, int]]) -> StepLoad:
    """parts: (first position, positions, rows of logits) of each request."""
    tokens = rows = context = pairs = 0
    for start, count, logits in parts:
        tokens += count
        rows += logits
        context += start + count
        pairs += count * start + count * (count + 1) // 2
    return StepLoad(tokens, rows, context, pairs)


class StepTimeModel:
    """See the module."""

    def __init__(self) -> None:
        self._theta: Row = [0.0] * _COUNT
        self._p: list[Row] = []
        """Covariance of the prices; empty before the first step."""
        self._widest = 0.0
        """Of the covariance's trace."""
        self._usual = 0.1
        self._streak = 0
        """Unusual errors of one sign in a row; negative where steps were shorter."""
        self.observed = 0
        self.largest = 0
        """Positions computed in the largest step that taught something: what is far beyond is a guess."""

    @property
    def learnt(self) -> bool:
        """Enough steps were seen."""
        return self.observed >= LEARNT

    @property
    def prices(self) -> StepPrices:
        """Never negative."""
        fixed, token, row, context, pair = (max(0.0, a / b) for a, b in zip(self._theta, _UNITS, strict=True))
        return fixed, token, row, context, pair

    @property
    def usual_error(self) -> float:
        """Mean of |seen / predicted - 1|, recent steps most, unusual ones left out."""
        return self._usual

    def predict(self, plan: StepPlan) -> float:
        """Seconds that the plan will take; 0 before anything was learnt."""
        return self.predict_load(load_of((work.start, work.count, work.rows) for work in plan.work))

    def predict_load(self, load: StepLoad) -> float:
        """Seconds; 0 before anything was learnt. A price below 0 may halve what the others say, no more."""
        x = _features(load)
        likely = _dot(self._theta, x)
        return max(likely, sum(max(0.0, price) * value for price, value in zip(self._theta, x, strict=True)) / 2)

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step of this load took so long. What took no time at all was not computed, and teaches nothing."""
        if seconds < _LEAST:
            return
        if not self._p:
            self._doubt(seconds)
        x = _features(load)
        predicted = _dot(self._theta, x)
        scale = max(predicted, seconds / 8) if self.learnt else seconds
        error = (seconds - predicted) / scale
        self.observed += 1
        if self.observed > LEARNT and self._passed_over(error):
            return
        self.largest = max(self.largest, load.tokens)
        self._update([value / scale for value in x], error)

    def _passed_over(self, error: float) -> bool:
        """Judges an error; True where it teaches nothing."""
        if abs(error) <= _UNUSUAL * self._usual:
            self._streak = 0
            self._usual += 0.05 * (abs(error) - self._usual)
            self._usual = max(self._usual, 0.01)
            return False
        sign = 1 if error > 0 else -1
        self._streak = self._streak + sign if self._streak * sign > 0 else sign
        if abs(self._streak) >= _STREAK:
            self._doubt(self._widest**0.5)
            self._usual = min(1.0, self._usual * 1.5)
        return abs(self._streak) == 1

    def _doubt(self, spread: float) -> None:
        """Any price may be `spread` seconds away (a unit of its feature)."""
        variance = spread * spread
        self._p = [[variance if i == j else 0.0 for j in range(_COUNT)] for i in range(_COUNT)]
        self._widest = variance

    def _update(self, x: Row, error: float) -> None:
        """One step of recursive least squares: x is a row, error what it left unexplained."""
        p, theta = self._p, self._theta
        px = [_dot(row, x) for row in p]
        down = _NOISE + _dot(px, x)
        grow = 1 / _FORGET
        if (p[0][0] + p[1][1] + p[2][2] + p[3][3] + p[4][4]) * grow > _COUNT * self._widest:
            grow = 1.0
        for i in range(_COUNT):
            theta[i] += px[i] / down * error
            row, factor = p[i], px[i] / down
            row[0] = (row[0] - factor * px[0]) * grow
            row[1] = (row[1] - factor * px[1]) * grow
            row[2] = (row[2] - factor * px[2]) * grow
            row[3] = (row[3] - factor * px[3]) * grow
            row[4] = (row[4] - factor * px[4]) * grow


def _features(load: StepLoad) -> Row:
    return [
        1.0,
        load.tokens / _UNITS[1],
        load.rows / _UNITS[2],
        load.context / _UNITS[3],
        load.pairs / _UNITS[4],
    ]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4]
