"""A request inside the engine: its tokens, its two counters and where it stands.

    WAITING --admit--> RUNNING --finish--> FINISHED
    RUNNING --preempt--> PREEMPTED --admit--> RUNNING

There is no prefill state and no decode state: `num_computed` moves towards `num_tokens`. The counter moves when a
step is submitted and is corrected when it retires. A request whose next token is being drawn in a step in flight
(`drawing`) is not planned again before that step retires. Transitions happen by methods alone.
"""

from __future__ import annotations

from enum import Enum

from octavo.kvcache.block_table import SequenceKV
from octavo.types import FinishReason, NewRequest

PRIORITY_WORTH = 256
"""Arrivals that one step of priority is worth: a request is passed by at most this many later ones a step between
them, so even the lowest priority waits a bounded time."""


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class RequestState:
    """One request from admission to its final delta; compared by identity."""

    __slots__ = (
        "cached_tokens",
        "computed_once",
        "drawing",
        "epoch",
        "kv",
        "max_total",
        "min_total",
        "num_computed",
        "num_known",
        "num_prompt",
        "order",
        "preemptions",
        "request",
        "resumed_at",
        "scored",
        "slot",
        "status",
        "stop_ids",
        "tokens",
        "turn",
    )

    def __init__(self, request: NewRequest, arrival: int, limit: int, eos: tuple[int, ...], kv: SequenceKV) -> None:
        """limit: longest prompt + output. arrival: grows by one a request."""
        params = request.params
        self.request = request
        self.tokens = request.prompt + request.generated
        self.num_prompt = len(request.prompt)
        self.num_known = len(self.tokens)
        """Tokens that came with the request."""
        self.max_total = min(self.num_prompt + (params.max_tokens if request.pooling is None else 0), limit)
        self.min_total = self.num_prompt + params.min_tokens
        self.stop_ids = frozenset(params.stop_token_ids if params.ignore_eos else params.stop_token_ids + eos)
        self.order = (arrival + PRIORITY_WORTH * request.priority, arrival)
        """Who goes first: smaller is earlier. A preempted request keeps its place."""
        self.kv = kv
        self.status = Status.WAITING
        self.num_computed = 0
        self.computed_once = self.num_known - 1 if request.generated else 0
        """Positions below this were computed or found at some time, in an engine before this one too: computing them
        again is recomputation."""
        self.scored = request.scored
        """Of the prompt's log-probabilities, so many were told."""
        self.drawing = False
        """All that is known is in steps in flight, of which the last draws a token, or makes the vector."""
        self.slot: int | None = None
        """Set while the executor knows the request."""
        self.epoch = 0
        """Grows when the request leaves its slot; results of older epochs are dropped."""
        self.preemptions = 0
        self.resumed_at = 0
        """`num_tokens` at the last admission."""
        self.turn = 0
        """Grows with every work that the scheduler gives out: smaller was served longer ago."""
        self.cached_tokens: int | None = None
        """Set at first admission, taken by the first delta."""

    @property
    def priority(self) -> int:
        """Lower is sooner."""
        return self.request.priority

    @property
    def remaining(self) -> int:
        """Positions still to compute before the next token can be drawn."""
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def open_tokens(self) -> int:
        """Tokens that may still be generated."""
        return self.max_total - len(self.tokens)

    @property
    def progressed(self) -> bool:
        """Something was generated since the last admission."""
        return len(self.tokens) > self.resumed_at

    @property
    def draws(self) -> bool:
        """Tokens are to be generated; else the request is over once its prompt is scored or pooled."""
        return self.request.pooling is None and self.request.params.max_tokens > 0

    @property
    def scores_left(self) -> int:
        """Prompt log-probabilities still to tell: the first token has none."""
        return 0 if self.request.params.prompt_logprobs is None else self.num_prompt - 1 - self.scored

    def scoring(self, start: int, end: int) -> tuple[int, int]:
        """The positions within [start, end) at which a prompt token's log-probability is still to be computed."""
        if not self.scores_left:
            return (0, 0)
        first, last = max(start, self.scored), min(end, self.num_prompt - 1)
        return (first, last) if first < last else (0, 0)

    def score(self, count: int) -> None:
        """So many more of them are told. After the last one the request may use what is cached, as any other."""
        if not count:
            return
        self.scored += count
        assert self.scores_left >= 0
        self.kv.fresh = self.kv.fresh and (self.scores_left > 0 or self.request.pooling is not None)

    def admit(self) -> None:
        """Pages are reserved."""
        assert self.status in (Status.WAITING, Status.PREEMPTED)
        self.status = Status.RUNNING
        self.resumed_at = len(self.tokens)

    def start(self) -> tuple[int, int]:
        """The counter starts behind what the prefix cache holds; again when more of it has come from a tier.

        Returns the positions of the prompt that need not be computed (hits), and those that the request had before a
        preemption and found again: they are no hits.
        """
        before, once = self.num_computed, self.computed_once
        # The last position is always computed: its logits draw the next token.
        self.num_computed = found = min(self.kv.matched, len(self.tokens) - 1)
        self.computed_once = max(once, found)
        hits = max(0, min(found, self.num_prompt) - once)
        if hits or not (once or self.preemptions):
            self.cached_tokens = (self.cached_tokens or 0) + hits
        return hits, max(0, min(found, once) - before)

    def preempt(self) -> None:
        """Pages are gone; everything known will be computed again."""
        assert self.status is Status.RUNNING
        self.status = Status.PREEMPTED
        self.preemptions += 1
        self._leave()

    def finish(self) -> None:
        assert self.status is not Status.FINISHED
        self.status = Status.FINISHED
        self._leave()

    def take(self, tokens: list[int], finish: FinishReason | None) -> tuple[list[int], FinishReason | None]:
        """Takes tokens up to the one that ends the request: those taken, and the reason; without any it is `finish`."""
        for taken, token in enumerate(tokens, 1):
            self.tokens.append(token)
            finish = self.ending()
            if finish is not None:
                return tokens[:taken], finish
        return tokens, finish

    def ending(self) -> FinishReason | None:
        """What the newest token means: a stop id past `min_tokens`, the length, or nothing."""
        total = len(self.tokens)
        if self.tokens[-1] in self.stop_ids and total > self.min_total and total > self.num_prompt:
            return FinishReason.STOP
        return FinishReason.LENGTH if total >= self.max_total else None

    def _leave(self) -> None:
        self.num_computed = 0
        self.drawing = False
        self.slot = None
        self.epoch += 1
