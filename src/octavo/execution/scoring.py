"""Log-probabilities of a prompt's own tokens: at the rows of a step where the next token is known.

Called once a step, after its draws were taken. Logits exist for a bounded number of rows at once (`Forward.score`),
never for a whole prompt. Owns no state. Off switch: no work has a range to score, and nothing is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.execution.forward import Forward
from octavo.execution.slots import Slot
from octavo.ops.base import SampleRow
from octavo.types import SeqWork, TokenLogprobs

Scores = dict[int, tuple[TokenLogprobs, ...] | None]
"""By slot; None where the logits are no numbers."""


def score_prompts(forward: Forward, works: Sequence[tuple[SeqWork, Slot]]) -> Scores:
    """Of every work that has positions to score. works: those of the forward pass that ran last, in its order."""
    rows: list[int] = []
    samples: list[SampleRow] = []
    base = 0
    for work, slot in works:
        first, end = work.score
        for position in range(first, end):
            sample = forward.new_sample(0.0, 0, 1.0, 0.0, 0, 0, slot.prompt_alternatives)
            sample.given = slot.tokens[position + 1]
            rows.append(base + position - work.start)
            samples.append(sample)
        base += work.count
    if not rows:
        return {}
    found = iter(forward.score(np.array(rows, np.int32), samples))
    scores: Scores = {}
    for work, _ in works:
        first, end = work.score
        if first == end:
            continue
        drawn = [next(found) for _ in range(first, end)]
        sound = all(token >= 0 for token, *_ in drawn)
        scores[work.slot] = tuple(TokenLogprobs(*values) for _, *values in drawn) if sound else None
    return scores
