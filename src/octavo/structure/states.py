"""States in the mask process: one request's place in its grammar.

Owns a matcher and the tokens that it has taken. Life: opened without tokens, moved by `sync` (back and forward), read
after each move, dropped when the request is over. There is no off switch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo.structure.grammar import DEAD_ENDS, explain

if TYPE_CHECKING:
    from llguidance import LLMatcher

U32 = npt.NDArray[np.uint32]


class TooComplex(ValueError):
    """The grammar asks for more work than a position may cost; the message is a clause."""


class State:
    """See the module. `row` is where its mask lies."""

    def __init__(self, start: LLMatcher, row: U32, ends: U32) -> None:
        """start: a matcher that has taken nothing; it is copied. ends: bits of the ids that end an output."""
        self._start = start
        self._matcher = start.deep_copy()
        self._row = row
        self._ends = ends
        self.tokens: list[int] = []

    def sync(self, keep: int, tokens: Sequence[int]) -> None:
        """Keeps the first `keep` tokens and takes `tokens`, up to the first that the grammar forbids."""
        back = len(self.tokens) - keep
        assert back >= 0, (len(self.tokens), keep)
        if back:
            del self.tokens[keep:]
            if not self._matcher.rollback(back):
                self._matcher = self._start.deep_copy()
                again, self.tokens = self.tokens, []
                self._take(again)
        self._take(tokens)

    def read(self, ahead: int) -> tuple[list[int], bool]:
        """Fills the row; forced tokens that were taken on the way, and whether nothing but the end may follow.

        A forced token is one that alone is allowed; at most `ahead` of them are taken, and the end never is.
        """
        forced: list[int] = []
        while True:
            self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
            self._check()
            allowed = int(np.bitwise_count(self._row).sum())
            if allowed and not (self._row & ~self._ends).any():
                return forced, True
            if allowed != 1 or len(forced) >= ahead:
                return forced, False
            word = int(np.flatnonzero(self._row)[0])
            token = 32 * word + int(self._row[word]).bit_length() - 1
            self._take([token])
            forced.append(token)

    def _take(self, tokens: Sequence[int]) -> None:
        taken = self._matcher.try_consume_tokens(list(tokens)) if tokens else 0
        self.tokens.extend(tokens[:taken])
        self._check()

    def _check(self) -> None:
        """What stopped the matcher, if anything did; a dead end is an empty mask and no fault."""
        if not self._matcher.is_error():
            return
        if self._matcher.stop_reason() in DEAD_ENDS:
            self._row[:] = 0
            return
        raise TooComplex(explain(self._matcher.get_error()))
