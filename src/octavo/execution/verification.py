"""Which of the draws of a request's rows count: the accepted draft tokens, and the one behind them.

`Coupled`: a draft token is accepted if and only if it is the target's own draw, whose noise depends on (seed, position,
choice, token id) alone. So the tokens are those without drafts, whatever was guessed.
`Rejection` (`SpeculativeConfig.verification`): classic rejection sampling (speculative/rejection.py), in NumPy, slower:
the distribution is the target's, the tokens depend on what was guessed. Greedy requests are judged as by `Coupled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.config import SpeculativeConfig
from octavo.execution.forward import Forward
from octavo.execution.slots import Slot
from octavo.ops.base import Drawn
from octavo.ops.reference.sampler import ReferenceSample, is_greedy, logprobs_of, shaped
from octavo.speculative.rejection import Place, judge, target_of


class Verifier(Protocol):
    """See the module."""

    def taken(self, slot: Slot, drafts: Sequence[int], draws: Sequence[Drawn], row: int) -> Sequence[Drawn]:
        """The draws that count; none where the first row has none.

        draws: of 1 + len(drafts) rows, the first of which is logit row `row`.
        """
        ...


class Coupled:
    """See the module."""

    def taken(self, slot: Slot, drafts: Sequence[int], draws: Sequence[Drawn], row: int) -> Sequence[Drawn]:
        count = 0
        while count < len(drafts) and draws[count][0] == drafts[count]:
            count += 1
        # Where nothing can be drawn behind accepted tokens, the next step says so.
        return draws[: count + (draws[count][0] >= 0)]


class Rejection:
    """See the module."""

    def __init__(self, forward: Forward, num_tokens: int) -> None:
        """num_tokens: ids below it may be drawn."""
        self._forward = forward
        self._num_tokens = num_tokens
        self._coupled = Coupled()

    def taken(self, slot: Slot, drafts: Sequence[int], draws: Sequence[Drawn], row: int) -> Sequence[Drawn]:
        own = slot.reference_row()
        if not drafts or is_greedy(own):
            return self._coupled.taken(slot, drafts, draws, row)
        logits = self._forward.logits(row + len(drafts) + 1)[row:, : self._num_tokens]
        taken: list[Drawn] = []
        for behind, guess in enumerate(drafts):
            if draws[behind][0] < 0:
                return taken
            sample = _state(slot, drafts[:behind])
            place = Place(sample.seed, sample.position, sample.choice)
            token, accepted = judge(target_of(shaped(logits[behind], sample)), guess, place)
            taken.append((token, *logprobs_of(logits[behind], token, sample)))
            if not accepted:
                return taken
        return taken if draws[-1][0] < 0 else [*taken, draws[-1]]


def _state(slot: Slot, before: Sequence[int]) -> ReferenceSample:
    """How a row is drawn behind these draft tokens."""
    sample = slot.reference_row()
    tokens = [*slot.tokens, *before]
    sample.position = len(tokens)
    if slot.output_counts is not None:
        counts = slot.output_counts.copy()
        for token in before:
            counts[token] += 1
        slot.set_counts(sample, counts)
    restriction = slot.rules.at(tokens)
    sample.set_banned(restriction.banned)
    sample.set_mask(restriction.mask)
    return sample


def make_verifier(config: SpeculativeConfig, forward: Forward, num_tokens: int) -> Verifier:
    """What the configuration asks for; config is resolved."""
    return Rejection(forward, num_tokens) if config.verification == "rejection" else Coupled()
