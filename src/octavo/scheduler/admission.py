"""Who may enter: requests that can never run are refused, the others wait until there is room.

A request is admitted when the pool can hold all its known tokens; its output grows block by block afterwards, so a
full pool may preempt it. A preempted request asks for more, so that nothing goes back and forth: after its first
preemption there must be room for what it and the running requests are *expected* to generate, after its second for
all that they *may* generate. So nobody is preempted a third time.
A request alone is admitted whatever it may generate: `max_total` never exceeds the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kvcache.block_table import SequenceKV
from octavo.scheduler.state import RequestState
from octavo.types import ErrorCode, NewRequest

_LEAST_EXPECTED = 128
MAX_PREEMPTIONS = 2
"""Preemptions of one request at most."""


@dataclass(frozen=True)
class Limits:
    """What no request may exceed."""

    max_model_len: int
    pool_tokens: int
    max_context: int
    vocab_size: int
    max_waiting: int
    priorities: bool = True
    """Requests may have a priority other than 0."""

    @property
    def max_total(self) -> int:
        """Longest prompt + output."""
        return min(self.max_model_len, self.pool_tokens)


@dataclass(frozen=True)
class Refusal:
    """Why a request is not taken."""

    error: str
    code: ErrorCode | None = None


def refusal(request: NewRequest, limits: Limits, waiting: int, shared: bool = False) -> Refusal | None:
    """Why the request cannot be taken at all, or None.

    waiting: as this tenant counts them. shared: others wait too, and the tenant's part of the queue is what is full.
    """
    error = _wrong(request, limits)
    if error is not None:
        return Refusal(error)
    answer = min(request.params.max_tokens, 1) if request.pooling is None else 0
    if len(request.prompt) + answer > limits.max_total:
        return Refusal(_too_long(len(request.prompt), answer, limits), ErrorCode.NEVER_FITS)
    if waiting >= limits.max_waiting:
        who = "this tenant has its part of the queue waiting" if shared else f"{waiting} requests are waiting"
        return Refusal(
            f"{who[:1].upper()}{who[1:]} and --max-queue-requests is {limits.max_waiting}; "
            f"try again later or start with --max-queue-requests {2 * limits.max_waiting}.",
            ErrorCode.QUEUE_FULL,
        )
    return None


def _wrong(request: NewRequest, limits: Limits) -> str | None:
    """What no engine could take."""
    prompt = request.prompt
    if not prompt:
        return "The prompt is empty; send at least one token."
    undrawn = request.pooling is not None or request.params.prompt_logprobs is not None
    if request.params.max_tokens < (0 if undrawn else 1):
        return f"max_tokens is {request.params.max_tokens}; use 1 or more, or 0 with prompt_logprobs."
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= limits.vocab_size:
        wrong = low if low < 0 else high
        return f"The prompt holds the token id {wrong}; use ids from 0 to {limits.vocab_size - 1}."
    if request.priority and not limits.priorities:
        return "priority needs --scheduling-policy priority; leave it out, or start with that flag."
    return None


def _too_long(length: int, answer: int, limits: Limits) -> str:
    room = limits.max_total - answer
    enough = -(-(length + answer) // 32) * 32
    if limits.pool_tokens <= limits.max_model_len and limits.pool_tokens < limits.max_context:
        what, larger = f"the KV pool holds {limits.pool_tokens}", f" or start with --kv-tokens {enough} or more"
    elif limits.max_model_len < limits.max_context:
        what = f"--max-model-len is {limits.max_model_len}"
        larger = f" or start with --max-model-len {min(enough, limits.max_context)}"
    else:
        what, larger = f"the model's context is {limits.max_model_len}", ""
    what += ", answer included" if answer else ""
    return f"The prompt has {length} tokens and {what}; shorten the prompt to {room} tokens{larger}."


def reserved_growth(request: RequestState, running: Sequence[RequestState]) -> dict[SequenceKV, int]:
    """Tokens that must still find room after the request's known tokens have got theirs, by request."""
    if not request.preemptions or not running:
        return {}
    certain = request.preemptions >= MAX_PREEMPTIONS
    return {other.kv: len(other.tokens) + _growth(other, certain) for other in (request, *running)}


def _growth(request: RequestState, certain: bool) -> int:
    """Tokens still to come: the most there can be, or as many again as there are."""
    most = request.open_tokens
    return most if certain else min(most, max(_LEAST_EXPECTED, request.num_generated))
