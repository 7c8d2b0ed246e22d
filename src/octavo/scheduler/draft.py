"""A step while it is being planned: who computes how much, what is left of the budget, and the finished `StepPlan`.

Life: made by `Scheduler.plan`, filled in batch order, changed when a request in it is preempted, then turned into a
`StepPlan` and the record that `Scheduler.retire` needs; nothing outlives the step but that record.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.state import RequestState
from octavo.scheduler.step_model import StepLoad
from octavo.types import SeqOutput


@dataclass(slots=True)
class Item:
    """One request's part of the step; becomes one `SeqWork`."""

    request: RequestState
    start: int
    count: int
    """Positions, those of `drafts` included."""
    sample: bool = False
    score: tuple[int, int] = (0, 0)
    """Positions of the prompt whose next token's log-probability is wanted."""
    epoch: int = 0
    drafts: tuple[int, ...] = ()

    def computed(self, output: SeqOutput) -> int:
        """Positions below this are computed, rejected drafts left out."""
        return self.start + self.count - len(self.drafts) + max(0, len(output.tokens) - 1)

    def settle(self) -> None:
        """The item changes no more: what it yields."""
        end = self.start + self.count - len(self.drafts)
        self.sample = end == len(self.request.tokens) and self.request.draws
        self.score = self.request.scoring(self.start, end)

    @property
    def rows(self) -> int:
        """Rows of logits."""
        return self.sample * (1 + len(self.drafts)) + self.score[1] - self.score[0]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What was submitted, in the order of the plan."""

    step_id: int
    items: tuple[Item, ...]
    load: StepLoad
    predicted: float
    """Seconds that the model expected when the step was planned."""
    undrafted: float = 0.0
    """Seconds that it expected without drafts; 0 where it did not know, or nobody was to have any."""


class Draft:
    """Items in batch order, and the budget they leave."""

    __slots__ = ("_items", "budget", "left", "undrafted")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.left = budget
        self.undrafted = 0.0
        """See `StepRecord`."""
        self._items: dict[RequestState, Item] = {}

    def add(self, request: RequestState, count: int) -> None:
        assert count > 0 and request not in self._items
        self._items[request] = Item(request, request.num_computed, count)
        self.left -= count

    def extend(self, request: RequestState) -> None:
        """Gives a request that is in the step what is left of the budget, as far as it can use it."""
        item = self._items.get(request)
        if item is not None and self.left > 0:
            more = min(self.left, request.remaining - item.count)
            item.count += more
            self.left -= more

    def guess(self, item: Item, tokens: tuple[int, ...]) -> None:
        """The item's draft."""
        assert not item.drafts and len(tokens) <= self.left
        item.drafts = tokens
        item.count += len(tokens)
        self.left -= len(tokens)

    def drop(self, request: RequestState) -> None:
        """The request was preempted; its work, if any, leaves the step."""
        item = self._items.pop(request, None)
        if item is not None:
            self.left += item.count

    @property
    def empty(self) -> bool:
        return not self._items

    def items(self) -> tuple[Item, ...]:
        return tuple(self._items.values())
