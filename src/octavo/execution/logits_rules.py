"""Which ids may come next: every rule that forbids some, joined into one answer.

A rule sees a request's tokens, the prompt first, and says which ids may not follow them, or which alone may. What it
says depends on those tokens and on nothing else, so it may be asked about any position in any order: preemption,
replay and speculation rebuild nothing. Owns no state but what saves work.

Life: made when a request enters its slot (`rules_of`), asked once a row that is sampled. Off switch: a request that
names no such field has `NO_RULES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.types import ModelInfo, NewSlot

I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False, slots=True)
class Restriction:
    """What may not be drawn; two that are the same object say the same."""

    banned: I32 | None = None
    """Ids that may not."""
    mask: U32 | None = None
    """Bits of the ids that alone may, 32 a word."""


FREE = Restriction()


class Rule(Protocol):
    """One reason why ids are forbidden."""

    @property
    def field(self) -> str:
        """The parameter that asks for it, for error messages."""
        ...

    def at(self, tokens: Sequence[int]) -> Restriction:
        """What may not follow `tokens`; FREE where all may."""
        ...


class LogitsRules(Protocol):
    """All rules of one request."""

    def at(self, tokens: Sequence[int]) -> Restriction:
        """What may not follow `tokens`: banned by any rule, or missing in any mask."""
        ...

    def causes(self, tokens: Sequence[int]) -> list[str]:
        """The parameters that forbid anything here."""
        ...


class NoRules:
    """Everything may come next."""

    def at(self, tokens: Sequence[int]) -> Restriction:
        return FREE

    def causes(self, tokens: Sequence[int]) -> list[str]:
        return []


NO_RULES = NoRules()


class JoinedRules:
    """Several rules at once. As long as none of them changes its mind, neither does the answer's identity."""

    __slots__ = ("_answer", "_parts", "_rules")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._parts: list[Restriction] = []
        self._answer = FREE

    def at(self, tokens: Sequence[int]) -> Restriction:
        parts = [rule.at(tokens) for rule in self._rules]
        if len(parts) != len(self._parts) or any(new is not old for new, old in zip(parts, self._parts, strict=True)):
            self._parts = parts
            self._answer = joined(parts)
        return self._answer

    def causes(self, tokens: Sequence[int]) -> list[str]:
        return [rule.field for rule in self._rules if rule.at(tokens) is not FREE]


def joined(parts: Iterable[Restriction]) -> Restriction:
    """What is forbidden by any of several."""
    parts = [part for part in parts if part is not FREE]
    if len(parts) < 2:
        return parts[0] if parts else FREE
    banned = [part.banned for part in parts if part.banned is not None]
    masks = [part.mask for part in parts if part.mask is not None]
    return Restriction(
        np.concatenate(banned) if banned else None,
        np.bitwise_and.reduce(masks) if masks else None,
    )


def join(rules: Sequence[Rule]) -> LogitsRules:
    """Rules as one."""
    return JoinedRules(rules) if rules else NO_RULES


# --- the rules ------------------------------------------------------------------------------------


class EndsNotBefore:
    """Ids that would end the request are forbidden below `min_tokens`."""

    field = "min_tokens"

    def __init__(self, ids: Iterable[int], min_total: int) -> None:
        """min_total: tokens, the prompt's included, from which on it may end."""
        self._banned = _banning(ids)
        self._min_total = min_total

    def at(self, tokens: Sequence[int]) -> Restriction:
        return self._banned if len(tokens) < self._min_total else FREE


class OnlyThese:
    """Nothing but `allowed_token_ids`."""

    field = "allowed_token_ids"

    def __init__(self, ids: Iterable[int], vocab: int) -> None:
        self._mask = Restriction(mask=mask_of(ids, vocab))

    def at(self, tokens: Sequence[int]) -> Restriction:
        return self._mask


class BadWords:
    """The last token of a forbidden sequence is forbidden where the output ends with the tokens before it."""

    field = "bad_words"

    def __init__(self, sequences: Iterable[Sequence[int]], num_prompt: int) -> None:
        self._num_prompt = num_prompt
        alone: set[int] = set()
        self._behind: dict[int, list[tuple[list[int], int]]] = {}
        """Second last token -> (all tokens but the last, the last)."""
        for sequence in sequences:
            *head, last = sequence
            if head:
                self._behind.setdefault(head[-1], []).append((head, last))
            else:
                alone.add(last)
        self._alone = frozenset(alone)
        self._known = {self._alone: _banning(alone)}

    def at(self, tokens: Sequence[int]) -> Restriction:
        output = len(tokens) - self._num_prompt
        ids = self._alone
        for head, last in self._behind.get(tokens[-1], ()) if output else ():
            if len(head) <= output and head == list(tokens[-len(head) :]):
                ids = ids | {last}
        found = self._known.get(ids)
        if found is None:
            found = self._known[ids] = _banning(ids)
        return found


def rules_of(new: NewSlot, info: ModelInfo) -> list[Rule]:
    """The rules that a request's parameters ask for. Ids that no token has are never drawn, and left out."""
    params = new.params
    drawable = range(info.num_tokens)
    rules: list[Rule] = []
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(info.eos_token_ids))
    if params.min_tokens:
        rules.append(EndsNotBefore(ends & set(drawable), new.num_prompt + params.min_tokens))
    if params.allowed_token_ids is not None:
        rules.append(OnlyThese((i for i in params.allowed_token_ids if i in drawable), info.vocab_size))
    if words := [word for word in params.bad_words if word and all(i in drawable for i in word)]:
        rules.append(BadWords(words, new.num_prompt))
    return rules


def mask_of(ids: Iterable[int], vocab: int) -> U32:
    """Bits of the ids, 32 a word."""
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def _banning(ids: Iterable[int]) -> Restriction:
    listed = sorted(ids)
    return Restriction(banned=np.array(listed, np.int32)) if listed else FREE
