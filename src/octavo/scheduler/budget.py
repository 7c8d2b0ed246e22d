"""How many tokens a step may have.

`FixedBudget`: `max_num_batched_tokens`, always.

`TargetBudget` (`scheduler.target_itl_ms`): while somebody decodes, a step gets all decodes and as much of the prompts
as the step-time model says will fit into the target; while nobody decodes, nobody waits for a next token and the
budget is whole. `_LEAST` prompt tokens a step are always allowed, so a target that the decodes alone miss cannot
starve prompts.

Off: `scheduler.target_itl_ms = None` makes the fixed one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from octavo.config import SchedulerConfig
from octavo.scheduler.state import RequestState
from octavo.scheduler.step_model import StepLoad, StepTimeModel

_LEAST = 16
_FIRST = 32
"""Prompt tokens a step while the model has learnt nothing."""
_AIM = 0.9
"""Of the target: what happens between two steps, and steps that take a little longer, must fit too."""


class Budget(Protocol):
    """Tokens of one step."""

    def tokens(self, decodes: Sequence[RequestState], prompts: Sequence[RequestState]) -> int:
        """decodes: requests with one position to compute; prompts: running ones with more."""
        ...


class FixedBudget:
    """The null twin."""

    def __init__(self, most: int) -> None:
        self._most = most

    def tokens(self, decodes: Sequence[RequestState], prompts: Sequence[RequestState]) -> int:
        return self._most


class TargetBudget:
    """See the module."""

    def __init__(self, most: int, seconds: float, model: StepTimeModel) -> None:
        self._most = most
        self._aim = _AIM * seconds
        self._model = model

    def tokens(self, decodes: Sequence[RequestState], prompts: Sequence[RequestState]) -> int:
        if not decodes:
            return self._most
        start = max((request.num_computed for request in prompts), default=0)
        return min(self._most, len(decodes) + self._chunk(decodes, start))

    def _chunk(self, decodes: Sequence[RequestState], start: int) -> int:
        """The most prompt tokens from position `start` on beside the decodes: c with predicted seconds <= aim."""
        if not self._model.learnt:
            return _FIRST
        count = len(decodes)
        context = sum(request.num_computed + 1 for request in decodes)
        spare = self._aim - self._model.predict_load(StepLoad(count, count + 1, context))
        _, token, _, position = self._model.prices
        if spare <= 0:
            return _LEAST
        # position / 2 c^2 + (token + position start) c = spare
        square, linear = position / 2, token + position * start
        if linear <= 0 and square <= 0:
            return self._most
        chunk = 2 * spare / (linear + math.sqrt(linear * linear + 4 * square * spare))
        return max(_LEAST, min(self._most, int(chunk)))


def make_budget(config: SchedulerConfig, model: StepTimeModel) -> Budget:
    """The budget that the configuration asks for."""
    if config.target_itl_ms is None:
        return FixedBudget(config.max_num_batched_tokens)
    return TargetBudget(config.max_num_batched_tokens, config.target_itl_ms / 1000, model)
