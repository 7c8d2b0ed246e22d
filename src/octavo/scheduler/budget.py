"""How many tokens a step may have.

`FixedBudget`: `max_num_batched_tokens`, always.

`TargetBudget` (`scheduler.target_itl_ms`): while somebody decodes, a step gets all decodes and as much of the prompts
as the step-time model says will fit into the target; while nobody decodes, nobody waits for a next token and the
budget is whole. Decodes leave prompts no more than that, for one that is held back waits a whole step. What protects
prompts:

- a step always has one prompt token at least, so a prompt of r tokens is the oldest for r steps at most;
- where the room is small, `_LEAST` tokens may use what is kept for steps that take a little longer (`_AIM`);
- where decodes alone miss the target by far (`_HOPELESS`), slow prompts would not save it: they get `_LEAST` tokens.

A chunk is twice the largest step that the model has learnt from at most, so a price that nobody has seen yet is tried
in small steps.

Off: `scheduler.target_itl_ms = None` makes the fixed one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from octavo.config import SchedulerConfig
from octavo.scheduler.state import RequestState
from octavo.scheduler.step_model import StepTimeModel, decode_load

_LEAST = 16
_FIRST = 32
"""Prompt tokens a step while the model has learnt nothing."""
_AIM = 0.9
"""Of the target: what happens between two steps, and steps that take a little longer, must fit too."""

_HOPELESS = 1.1
"""Times the target."""


class StepBudget(NamedTuple):
    """Tokens of one step."""

    tokens: int
    prompts: int
    """Of them, what the decodes leave for prompts at most."""


class Budget(Protocol):
    """Says how much a step may do."""

    def of(self, decodes: Sequence[RequestState], prompts: Sequence[RequestState]) -> StepBudget:
        """decodes: requests with one position to compute; prompts: running ones with more."""
        ...


class FixedBudget:
    """The null twin."""

    def __init__(self, most: int) -> None:
        self._whole = StepBudget(most, most)

    def of(self, decodes: Sequence[RequestState], prompts: Sequence[RequestState]) -> StepBudget:
        return self._whole


class TargetBudget:
    """See the module."""

    def __init__(self, most: int, seconds: float, model: StepTimeModel) -> None:
        self._most = most
        self._target = seconds
        self._model = model

    def of(self, decodes: Sequence[RequestState], prompts: Sequence[RequestState]) -> StepBudget:
        if not decodes:
            return StepBudget(self._most, self._most)
        start = max((request.num_computed for request in prompts), default=0)
        chunk = min(self._most, self._chunk(decodes, start))
        return StepBudget(min(self._most, len(decodes) + chunk), chunk)

    def _chunk(self, decodes: Sequence[RequestState], start: int) -> int:
        """Prompt tokens from position `start` on beside the decodes."""
        if not self._model.learnt:
            return _FIRST
        count = len(decodes)
        context = sum(request.num_computed + 1 for request in decodes)
        base = self._model.predict_load(decode_load(count, context))
        if base >= _HOPELESS * self._target:
            return _LEAST
        chunk = self._fitting(_AIM * self._target - base, start)
        if chunk < _LEAST:
            return max(1, min(_LEAST, self._fitting(self._target - base, start)))
        return min(chunk, max(_FIRST, 2 * self._model.largest))

    def _fitting(self, spare: float, start: int) -> int:
        """The most tokens from position `start` on that take `spare` seconds."""
        _, token, _, context, pair = self._model.prices
        # pair / 2 c^2 + (token + context + pair (start + 1/2)) c = spare - context start
        spare -= context * start
        if spare <= 0:
            return 0
        square, linear = pair / 2, token + context + pair * (start + 0.5)
        if linear <= 0 and square <= 0:
            return self._most
        return int(min(self._most, 2 * spare / (linear + math.sqrt(linear * linear + 4 * square * spare))))


def make_budget(config: SchedulerConfig, model: StepTimeModel) -> Budget:
    """The budget that the configuration asks for."""
    if config.target_itl_ms is None:
        return FixedBudget(config.max_num_batched_tokens)
    return TargetBudget(config.max_num_batched_tokens, config.target_itl_ms / 1000, model)
