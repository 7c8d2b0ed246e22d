"""Which requests of a step get drafts, and how long ones.

After everything else is planned, decodes may get draft tokens out of what the step's budget and the pool have left:
nobody waits, is cut short or is preempted for a guess. A draft ends before a stop id, before the request's last token
and within the rows that may need logits.

Adaptive (`SpeculativeConfig.adaptive`): a draft's j-th token is worth p^j tokens, p the acceptance measured of this
request and, while little is known of it, of all, for guesses of the same grade. What it costs says the step-time
model. Draft tokens are added, the likeliest first, while they raise the step's tokens a second; where none does, none
is. A guess that was not used is compared with what came all the same, so acceptance is known without paying for it.
Asking costs time too: requests whose guesses are not used are asked in turns, so that asking takes `_ASKING` of a step.

Off: `SpeculativeConfig.proposer = "off"` makes `NoSpeculation`, the null twin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from octavo.config import SpeculativeConfig
from octavo.kvcache.manager import KVManager
from octavo.scheduler.draft import Draft, Item
from octavo.scheduler.state import RequestState
from octavo.scheduler.step_model import StepLoad, StepTimeModel, load_of
from octavo.speculative.proposer import NOTHING, Proposal, Proposer, Query

_ASKING = 0.004
"""Of a step's time, for requests whose guesses are not used."""
_LEAST_ASKED = 2
_USUAL = 0.6
"""Acceptance of a token that nobody has measured."""
_TRUST = 6.0
"""Tokens of a request that weigh as much as all other requests together."""
_FADE = 0.97
"""Weight of a checked token when the next comes."""
_LIKELY = 0.3
"""Worth of a draft token while nothing is known of steps."""


class Speculation(Protocol):
    """What the scheduler asks."""

    counters: DraftCounters

    def draft(self, step: Draft, kv: KVManager, model: StepTimeModel) -> None:
        """Adds drafts to a step that is planned otherwise."""
        ...

    def taken(self, item: Item, tokens: Sequence[int]) -> int:
        """The tokens that came of an item; returns how many of its draft were accepted."""
        ...

    def retired(self, undrafted: float, seconds: float, decodes: int, accepted: int) -> None:
        """A step with drafts took so long; without them it would have taken `undrafted`, for `decodes` tokens."""
        ...

    def forget(self, request: RequestState) -> None:
        """It has ended."""
        ...


class DraftCounters:
    """What was done so far; only ever grows."""

    __slots__ = ("accepted", "checked", "saved", "seconds")

    def __init__(self, most: int = 0) -> None:
        self.checked = [0] * most
        """Entry p: drafts of more than p tokens."""
        self.accepted = [0] * most
        """Entry p: drafts whose first p + 1 tokens were accepted."""
        self.seconds = self.saved = 0.0


class NoSpeculation:
    """The null twin."""

    def __init__(self) -> None:
        self.counters = DraftCounters()

    def draft(self, step: Draft, kv: KVManager, model: StepTimeModel) -> None:
        return None

    def taken(self, item: Item, tokens: Sequence[int]) -> int:
        return 0

    def retired(self, undrafted: float, seconds: float, decodes: int, accepted: int) -> None:
        return None

    def forget(self, request: RequestState) -> None:
        return None


class Rate:
    """Accepted tokens of checked ones, recent ones most."""

    __slots__ = ("accepted", "checked")

    def __init__(self) -> None:
        self.accepted = self.checked = 0.0

    def count(self, accepted: int, refused: bool) -> None:
        """So many in a row were right, then one wrong, or the guess was over."""
        for right in (True,) * accepted + (False,) * refused:
            self.accepted = self.accepted * _FADE + right
            self.checked = self.checked * _FADE + 1

    def expect(self, usual: float) -> float:
        """Acceptance of the next token; usual: of those of which less is known."""
        return (self.accepted + _TRUST * usual) / (self.checked + _TRUST)


class _Known:
    """What is remembered of one request."""

    __slots__ = ("at", "guess", "rates", "used")

    def __init__(self, grades: int) -> None:
        self.rates = [Rate() for _ in range(grades)]
        self.guess = NOTHING
        self.at = -1
        """Position of the guess's first token."""
        self.used = True
        """The last guess was worth its cost."""


class _Choice(NamedTuple):
    item: Item
    known: _Known
    tokens: tuple[int, ...]
    p: float


class Drafting:
    """See the module."""

    def __init__(
        self, config: SpeculativeConfig, proposer: Proposer, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """config is resolved."""
        assert config.draft_tokens is not None and config.draft_rows is not None
        self.counters = DraftCounters(config.draft_tokens)
        self._most = config.draft_tokens
        self._rows = config.draft_rows
        self._adaptive = config.adaptive
        self._proposer = proposer
        self._clock = clock
        self._known: dict[RequestState, _Known] = {}
        self._usual = [Rate() for _ in range(proposer.grades)]
        self._turn = 0
        self._price = 0.0
        """Seconds that one question costs, lately."""

    def draft(self, step: Draft, kv: KVManager, model: StepTimeModel) -> None:
        room = min(step.left, self._rows)
        if room <= 0:
            return
        items = step.items()
        open_items = [
            item
            for item in items
            if _decodes(item) and item.request.open_tokens > 1 and item.start >= item.request.num_prompt
        ]
        if not open_items:
            return
        began = self._clock()
        load = load_of((item.start, item.count, _decodes(item)) for item in items)
        undrafted = model.predict_load(load) if model.learnt else 0.0
        asked = self._asked(open_items, undrafted)
        choices = self._ask(asked)
        if self._adaptive:
            lengths = self._worthwhile(choices, load, undrafted, model, room)
        else:
            lengths = _in_turn([len(choice.tokens) for choice in choices], room)
        for choice, length in zip(choices, lengths, strict=True):
            choice.known.used = length > 0
            length = _within_pool(choice.item, length, kv, len(items))
            if length > 0:
                step.guess(choice.item, choice.tokens[:length])
        step.undrafted = undrafted
        took = self._clock() - began
        self.counters.seconds += took
        self._price += 0.1 * (took / len(asked) - self._price)

    def taken(self, item: Item, tokens: Sequence[int]) -> int:
        known = self._known.get(item.request)
        if known is not None and known.at == item.start + 1:
            right, refused = _compare(known.guess.tokens, tokens)
            known.rates[known.guess.grade].count(right, refused)
            self._usual[known.guess.grade].count(right, refused)
        if not item.drafts:
            return 0
        accepted, _ = _compare(item.drafts, tokens)
        for position in range(len(item.drafts)):
            self.counters.checked[position] += 1
            self.counters.accepted[position] += position < accepted
        return accepted

    def retired(self, undrafted: float, seconds: float, decodes: int, accepted: int) -> None:
        if undrafted > 0:
            self.counters.saved += undrafted * (1 + accepted / decodes) - seconds

    def forget(self, request: RequestState) -> None:
        self._known.pop(request, None)
        self._proposer.forget(request.request.request_id, request.tokens, _scope(request))

    def _asked(self, items: list[Item], undrafted: float) -> list[Item]:
        """Those whose guesses were used, and of the others as many as asking may cost, in turns."""
        idle = [item for item in items if not self._of(item.request).used]
        most = max(_LEAST_ASKED, int(_ASKING * undrafted / self._price)) if self._price and undrafted else len(idle)
        if len(idle) <= most:
            return items
        self._turn = first = (self._turn + most) % len(idle)
        chosen = {item.request for item in (idle[first:] + idle[:first])[:most]}
        return [item for item in items if item.request in chosen or self._of(item.request).used]

    def _ask(self, items: list[Item]) -> list[_Choice]:
        queries = []
        for item in items:
            request = item.request
            most = min(self._most, request.open_tokens - 1)
            queries.append(Query(request.request.request_id, request.tokens, most, _scope(request)))
        choices = []
        for item, guess in zip(items, self._proposer.propose(queries), strict=True):
            known = self._of(item.request)
            tokens = _before_stop(guess.tokens, item.request.stop_ids)
            known.guess, known.at = Proposal(tokens, guess.grade), item.start + 1
            p = known.rates[guess.grade].expect(self._usual[guess.grade].expect(_USUAL))
            choices.append(_Choice(item, known, tokens, p))
        return choices

    def _worthwhile(
        self, choices: list[_Choice], load: StepLoad, undrafted: float, model: StepTimeModel, room: int
    ) -> list[int]:
        """Lengths that raise the tokens of this step a second the most."""
        lengths = [0] * len(choices)
        steps = [
            (choice.p ** (j + 1), -j, -number)
            for number, choice in enumerate(choices)
            for j in range(len(choice.tokens))
        ]
        steps.sort(reverse=True)
        seconds, tokens = undrafted, float(load.rows)
        for gain, _, number in steps[:room]:
            if undrafted > 0:
                cost = _price(model, load, choices[-number].item.start)
                if gain * seconds <= tokens * cost:
                    continue
                seconds += cost
                tokens += gain
            elif gain < _LIKELY:
                continue
            lengths[-number] += 1
        return lengths

    def _of(self, request: RequestState) -> _Known:
        known = self._known.get(request)
        if known is None:
            known = self._known[request] = _Known(self._proposer.grades)
        return known


def make_speculation(config: SpeculativeConfig, proposer: Proposer) -> Speculation:
    """What the configuration asks for; config is resolved."""
    return Drafting(config, proposer) if config.on and config.draft_rows else NoSpeculation()


def _decodes(item: Item) -> bool:
    """It draws a token and computes nothing else."""
    return item.request.request.pooling is None and item.count == 1 and item.start + 1 == len(item.request.tokens)


def _scope(request: RequestState) -> str:
    return f"{request.request.tenant}\0{request.request.cache_salt}"


def _before_stop(tokens: tuple[int, ...], stops: frozenset[int]) -> tuple[int, ...]:
    """What comes behind a stop id would be computed for nothing; the stop itself is drawn as any token is."""
    for index, token in enumerate(tokens):
        if token in stops:
            return tokens[:index]
    return tokens


def _within_pool(item: Item, length: int, kv: KVManager, spare: int) -> int:
    """As much of a draft as there are free pages for, while `spare` blocks are left to those that decode."""
    request = item.request
    if length <= 0 or item.start + 1 + length <= request.kv.capacity:
        return length
    if kv.reserve(request.kv, request.tokens, item.start + 1 + length, None, spare):
        return length
    return min(length, request.kv.capacity - item.start - 1)


def _in_turn(lengths: list[int], room: int) -> list[int]:
    """Whole drafts, in order of the batch."""
    given = []
    for length in lengths:
        given.append(min(length, room))
        room -= given[-1]
    return given


def _compare(guess: Sequence[int], tokens: Sequence[int]) -> tuple[int, bool]:
    """Tokens that were guessed right from the start, and whether then one was wrong."""
    for index, (guessed, token) in enumerate(zip(guess, tokens, strict=False)):
        if guessed != token:
            return index, True
    return min(len(guess), len(tokens)), False


def _price(model: StepTimeModel, load: StepLoad, start: int) -> float:
    """Seconds of one draft token more."""
    more = StepLoad(load.tokens + 1, load.rows + 1, load.context + 1, load.pairs + start + 1)
    return max(0.0, model.predict_load(more) - model.predict_load(load))
