"""Structured outputs in a step: the grammar's mask as one more rule, waited for when the logits are there.

Masks are computed by another process (structure/) while the host plans and the forward pass runs: a drawn token is
told at once, and the step's sampling alone waits. Rows of plain requests wait for a slow mask only a part of what the
step has taken; a row whose mask is late is computed and not drawn, and comes again in the next step.

Jump-forward: where a grammar allows one token alone, nothing has to be drawn. Such tokens are added behind the drawn
one, and the scheduler computes them as a chunk. Requests with logprobs, or with another rule about tokens, draw every
token. Off: `execution.jump_forward = False`. All of it off: `execution.structured_outputs = False`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from octavo.execution.logits_rules import U32, Restriction, mask_of
from octavo.structure.masker import MaskState
from octavo.structure.messages import Position
from octavo.types import FinishReason, SeqOutput

JUMP_TOKENS = 64
"""Forced tokens behind one drawn token at most."""
_PLAIN_WAIT = 0.25
"""Plain rows wait for masks this part of the step's time."""
_LEAST_WAIT = 0.0005
_ALONE_WAIT = 0.25
"""Seconds, where every row waits: then requests that were ended are looked for."""
_JUMP_WAIT = 0.1
"""Part of the step's time that it waits to learn of forced tokens."""
_ANY_WAIT = 10.0


class StructureRule:
    """One request's structure; a `logits_rules.Rule`."""

    field = "the structure"

    def __init__(self, state: MaskState, num_prompt: int, ends: U32, ignore_end: bool) -> None:
        """ends: bits of the ids that end an output. ignore_end: the output ends only where nothing else may follow."""
        self._state = state
        self._num_prompt = num_prompt
        self._ends = ends
        self._ignore_end = ignore_end
        self._known: list[tuple[list[int], Restriction]] = []
        """Of this step's rows: output, and what may follow it."""
        self._settled = False
        """The masks of this step's rows came in time."""
        self._ended = False
        self._fits = True

    def want(self, tokens: Sequence[int]) -> None:
        """Has the mask behind `tokens` computed."""
        self._state.want(list(tokens[self._num_prompt :]))

    def settle(self, tokens: Sequence[int], drafts: Sequence[int], patience: Patience) -> bool:
        """Has the masks behind `tokens` and behind each of `drafts` ready for `at`; False where one is late."""
        self._known.clear()
        self._settled = False
        for end in range(len(drafts) + 1):
            output = [*tokens[self._num_prompt :], *drafts[:end]]
            position = self._state.at(output, patience.left)
            if position is None and self._state.error is None:
                return False
            if end == 0:
                self._ended = position is not None and position.ended and len(self._state.history) == len(output)
                self._fits = position is None or position.taken == len(self._state.wanted)
            self._known.append((output, self._restriction(output, position)))
        self._settled = True
        return True

    def at(self, tokens: Sequence[int]) -> Restriction:
        output = list(tokens[self._num_prompt :])
        for known, restriction in self._known:
            if known == output:
                return restriction
        return self._restriction(output, self._state.at(output, _ANY_WAIT))

    def _restriction(self, output: list[int], position: Position | None) -> Restriction:
        words = len(self._ends)
        if position is None or len(output) > len(self._state.history):
            return Restriction(mask=mask_of((), 32 * words))  # a draft that the structure forbids
        if len(output) < len(self._state.history):
            return Restriction(mask=mask_of((self._state.history[len(output)],), 32 * words))
        mask = self._state.mask.copy()
        if self._ignore_end and not position.ended:
            mask &= ~self._ends
        return Restriction(mask=mask)

    def forced(self, tokens: Sequence[int], seconds: float) -> list[int]:
        """Tokens that alone may follow `tokens`, as far as is known after so long."""
        output = list(tokens[self._num_prompt :])
        if not self._state.ahead or self._state.at(output, seconds) is None:
            return []
        return self._state.history[len(output) :]

    def verdict(self, tokens: Sequence[int], drawn: int) -> SeqOutput | None:
        """What became of a row where no token is taken; None: it is. drawn: an id, or -1 where none could be."""
        if self._state.error is not None:
            return SeqOutput(error=self._state.error)
        if not self._settled:
            return SeqOutput()
        if not self._fits:
            return SeqOutput(error="the tokens generated so far do not fit the structure; send the request again")
        if self._ended and (drawn < 0 or self._ignore_end):
            return SeqOutput(finish=FinishReason.STOP)
        return SeqOutput(finish=FinishReason.LENGTH) if drawn < 0 else None

    def close(self) -> None:
        self._state.close()


class Patience:
    """How long one step may wait."""

    def __init__(self, alone: bool) -> None:
        """alone: every row that is sampled has a structure. Made when the step begins."""
        self._alone = alone
        self._began = time.monotonic()
        self._until = 0.0

    def for_masks(self) -> None:
        """The logits are there."""
        now = time.monotonic()
        part = _ALONE_WAIT if self._alone else max(_LEAST_WAIT, _PLAIN_WAIT * (now - self._began))
        self._until = now + part

    def for_jumps(self) -> None:
        """The tokens are drawn."""
        now = time.monotonic()
        self._until = now + max(_LEAST_WAIT, _JUMP_WAIT * (now - self._began))

    @property
    def left(self) -> float:
        """Seconds, 0 at least."""
        return max(0.0, self._until - time.monotonic())
