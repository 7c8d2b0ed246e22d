"""How a step's token budget is shared among prompts, after the decodes have taken theirs.

`SharedBudget` (chunked prefill): the oldest prompt has first claim on a quarter of what is left, so that no stream of
short prompts starves it; then the others, by rank (priority, tenant) and shortest first, so that no long prompt stalls
short ones; what remains goes to the oldest. Where decodes alone would fill the budget, they leave an eighth of it (what
nobody takes goes back).

The bound. A prompt ages into the oldest: only requests that came before it are ever older. Of a budget of B tokens the
oldest then gets max(1, B // 32) at least in every ceil(8 / B) steps, whatever decodes and whatever arrives, so an
admitted prompt with r positions left draws its first token within `wait_bound(r, B)` steps of being the oldest. A
request that is not admitted waits, from being the oldest on, no longer than those that run: nobody who came later is
given a place or a page that it needs (scheduler.py, `_admit`). A preemption starts the count again, and there are at
most two of those (admission.py). Before it is the oldest, the same bound holds for each that came before it.
With `target_itl_ms` it gets one token a step at least (budget.py).

Off: `scheduler.chunked_prefill = False` makes `WholePrompts`: a prompt is computed in one step, in order of age. Its
budget rule: the decodes are held back as far as the oldest prompt needs, so a prompt never waits for them to end;
`config.resolve()` demands a budget that holds the longest prompt, and without it a longer one runs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.scheduler.state import RequestState

_CLAIM = 4
"""The oldest prompt's first claim is the budget divided by this."""


Place = tuple[float, int, tuple[int, int]]

_SHARE = 8
"""Decodes leave the budget divided by this for prompts."""


def wait_bound(remaining: int, budget: int) -> int:
    """Steps within which the oldest prompt, admitted, with so many positions left, draws its first token."""
    return -(-remaining // max(1, budget // (_SHARE * _CLAIM))) * -(-_SHARE // budget)


class Chunking(Protocol):
    """Chunk sizes. `left` is what the budget still holds."""

    def hold_back(self, prompts: Sequence[RequestState], decodes: int, budget: int) -> int:
        """Tokens of the budget that the decodes must leave. prompts: the running ones; others may wait."""
        ...

    def place(self, request: RequestState, rank: float) -> Place:
        """The key by which prompts after the oldest are served. rank: of the waiting queue (waiting.py)."""
        ...

    def claim(self, remaining: int, left: int, alone: bool) -> int:
        """Tokens for the oldest prompt before the others are served. alone: nothing else is in the step."""
        ...

    def take(self, remaining: int, left: int) -> int:
        """Tokens for another prompt."""
        ...


class SharedBudget:
    """Several prompts in flight, in chunks."""

    def __init__(self) -> None:
        self._saved = 0
        """Of a budget too small to be divided: eighths of a token that prompts are owed."""

    def hold_back(self, prompts: Sequence[RequestState], decodes: int, budget: int) -> int:
        self._saved += min(budget, _SHARE)
        if self._saved < _SHARE:
            return 0
        self._saved -= _SHARE
        return max(1, budget // _SHARE)

    def place(self, request: RequestState, rank: float) -> Place:
        return rank, request.remaining, request.order

    def claim(self, remaining: int, left: int, alone: bool) -> int:
        return min(remaining, max(1, left // _CLAIM))

    def take(self, remaining: int, left: int) -> int:
        return min(remaining, left)


class WholePrompts:
    """The null twin: all or nothing, oldest first."""

    def hold_back(self, prompts: Sequence[RequestState], decodes: int, budget: int) -> int:
        if not prompts:
            return 0
        need = min(prompts, key=_age).remaining
        return need if need + decodes > budget else 0

    def place(self, request: RequestState, rank: float) -> Place:
        return 0.0, 0, request.order

    def claim(self, remaining: int, left: int, alone: bool) -> int:
        return remaining if alone or remaining <= left else 0

    def take(self, remaining: int, left: int) -> int:
        return remaining if remaining <= left else 0


def make_chunking(enabled: bool) -> Chunking:
    """The chunking that the configuration asks for."""
    return SharedBudget() if enabled else WholePrompts()


def _age(request: RequestState) -> tuple[int, int]:
    return request.order
