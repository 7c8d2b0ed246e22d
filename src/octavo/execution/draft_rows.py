"""How the rows of draft tokens are drawn: each by the request's own rules, in the state that its position has.

Behind i draft tokens the penalties count those tokens too, the rules (logits_rules.py) are asked what may follow them,
and the noise is that of the position. So a row's draw is what the target would draw if the draft were right so far.

Owns count arrays for the rows of one step, as many as were ever needed at once (never more than the configured draft
rows), used again from step to step. Without drafts nothing here runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.execution.logits_rules import NO_RULES
from octavo.execution.slots import Slot
from octavo.ops.base import SampleRow


class DraftRows:
    """See the module."""

    def __init__(self) -> None:
        self._counts: list[npt.NDArray[np.int32]] = []
        self._used = 0

    def begin(self) -> None:
        """A new step: what the last one's rows counted is over."""
        self._used = 0

    def of(self, slot: Slot, drafts: Sequence[int]) -> list[SampleRow]:
        """The rows behind 1, 2, ... draft tokens."""
        rows = []
        counts = slot.output_counts
        tokens = slot.tokens if slot.rules is NO_RULES else list(slot.tokens)
        for behind, token in enumerate(drafts, 1):
            row = slot.later_row(behind)
            row.position = len(slot.tokens) + behind
            if counts is not None:
                counts = self._copy(counts)
                counts[token] += 1
                slot.set_counts(row, counts)
            if slot.rules is not NO_RULES:
                tokens.append(token)
                restriction = slot.rules.at(tokens)
                row.set_banned(restriction.banned)
                row.set_mask(restriction.mask)
            rows.append(row)
        return rows

    def _copy(self, counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        if self._used == len(self._counts):
            self._counts.append(np.empty_like(counts))
        own = self._counts[self._used]
        self._used += 1
        np.copyto(own, counts)
        return own
