"""How a step's token budget is shared among prompts, after the decodes have taken theirs.

`SharedBudget` (chunked prefill): the oldest prompt has first claim on a quarter of what is left, so that no stream of
short prompts starves it; then the others, shortest first, so that no long prompt stalls short ones; what remains goes
to the oldest.

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


class Chunking(Protocol):
    """Chunk sizes. `left` is what the budget still holds."""

    def hold_back(self, prompts: Sequence[RequestState], decodes: int, budget: int) -> int:
        """Tokens of the budget that the decodes must leave."""
        ...

    def arrange(self, queue: list[RequestState]) -> None:
        """Sorts candidates: the oldest first, then as they should be served."""
        ...

    def claim(self, remaining: int, left: int, alone: bool) -> int:
        """Tokens for the oldest prompt before the others are served. alone: nothing else is in the step."""
        ...

    def take(self, remaining: int, left: int) -> int:
        """Tokens for another prompt."""
        ...


class SharedBudget:
    """Several prompts in flight, in chunks."""

    def hold_back(self, prompts: Sequence[RequestState], decodes: int, budget: int) -> int:
        return 0

    def arrange(self, queue: list[RequestState]) -> None:
        oldest = min(queue, key=_age)
        queue.sort(key=lambda request: (request is not oldest, request.remaining, request.order))

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

    def arrange(self, queue: list[RequestState]) -> None:
        queue.sort(key=_age)

    def claim(self, remaining: int, left: int, alone: bool) -> int:
        return remaining if alone or remaining <= left else 0

    def take(self, remaining: int, left: int) -> int:
        return remaining if remaining <= left else 0


def make_chunking(enabled: bool) -> Chunking:
    """The chunking that the configuration asks for."""
    return SharedBudget() if enabled else WholePrompts()


def _age(request: RequestState) -> tuple[int, int]:
    return request.order
