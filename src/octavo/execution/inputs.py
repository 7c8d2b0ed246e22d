"""StepPlan and slots -> the arrays of one step. The order of the plan's work is the batch order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo.execution.draft_rows import DraftRows
from octavo.execution.shared_prefix import NoSharing, Sharing
from octavo.execution.slots import Slot, Slots
from octavo.ops.base import SampleRow
from octavo.types import SeqWork

I32 = npt.NDArray[np.int32]


def _no_rows() -> I32:
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class StepInputs:
    """One step's inputs. Row r is a token; sequence s owns rows [row, row + count)."""

    tokens: I32
    seqs: I32
    """[sequences, 4] of (row, count, start, store_from)."""
    tables: list[I32]
    """[sequences, blocks] a group."""
    logit_rows: I32
    samples: Sequence[SampleRow]
    """One a logit row; empty where logits alone are wanted."""
    shared: list[tuple[I32, I32]] | None = None
    """Prefixes that sequences share (shared_prefix.py), one entry a group; None: none."""
    hidden_rows: I32 = field(default_factory=_no_rows)
    """Rows whose normalised hidden states pooled requests want."""
    late: Callable[[], Sequence[SampleRow]] | None = None
    """Asked for the samples when the logits are there; None: they are complete already."""


_NONE = NoSharing()


def build_inputs(
    slots: Slots,
    works: Sequence[tuple[SeqWork, Slot]],
    sharing: Sharing = _NONE,
    draft_rows: DraftRows | None = None,
) -> StepInputs:
    """The inputs of `works`, whose slots already hold their blocks. draft_rows: where works have drafts."""
    tokens: list[int] = []
    seqs: list[tuple[int, int, int, int]] = []
    logit_rows: list[int] = []
    samples: list[SampleRow] = []
    hidden_rows: list[int] = []
    row = 0
    for work, slot in works:
        start, count = work.start, work.count
        end = start + count - len(work.drafts)
        if count == 1:
            tokens.append(slot.tokens[start])
        else:
            tokens.extend(slot.tokens[start:end])
        seqs.append((row, count, start, work.store_from))
        row += count
        if slot.pool is not None:
            hidden_rows.extend(range(row - slot.pool.wanted(count, end == len(slot.tokens)), row))
        if work.sample:
            assert end == len(slot.tokens), (work, len(slot.tokens))
            tokens.extend(work.drafts)
            if slot.structure is not None:
                samples.extend(slot.bare_rows(len(work.drafts)))
            else:
                samples.append(slot.ready_sample())
                if work.drafts:
                    assert draft_rows is not None
                    samples.extend(draft_rows.of(slot, work.drafts))
            logit_rows.extend(range(row - 1 - len(work.drafts), row))
    assert len(tokens) == row, "work reaches beyond the tokens that are known"
    indices = [work.slot for work, _ in works]
    tables = [table[indices, : max(slot.used[group] for _, slot in works)] for group, table in enumerate(slots.tables)]
    return StepInputs(
        np.array(tokens, np.int32),
        np.array(seqs, np.int32),
        tables,
        np.array(logit_rows, np.int32),
        samples,
        sharing.find(slots, works),
        np.array(hidden_rows, np.int32),
    )
