"""What a worker remembers of each running request: tokens, block table, how to sample.

A slot is filled by a `NewSlot`, grows with each `SeqWork` and drawn token, and ends when the plan releases it or
fills it anew. A request whose set-up fails holds its slot with an error, which its next work reports; others go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from octavo.execution.logits_rules import FREE, NO_RULES, LogitsRules, Rule, join, mask_of, rules_of
from octavo.execution.pooling import Pool, make_pool
from octavo.execution.structured import StructureRule
from octavo.ops.base import SampleRow
from octavo.ops.reference.sampler import ReferenceSample
from octavo.structure.masker import Masker
from octavo.types import ModelInfo, NewSlot, SamplingParams, SeqWork

SampleFactory = Callable[[float, int, float, float, int, int, int], SampleRow]
"""(temperature, top_k, top_p, min_p, seed, choice, alternatives or -1) -> a back end's sample."""

S = TypeVar("S", bound=SampleRow)
_SEED_MASK = (1 << 64) - 1
MAX_ALTERNATIVES = 32
"""Log-probabilities of alternatives that a sampler returns at most."""


class Slot:
    """One running request."""

    __slots__ = (
        "_later",
        "_restriction",
        "biased",
        "error",
        "make_row",
        "output_counts",
        "partitions",
        "pool",
        "prompt_alternatives",
        "reference_row",
        "rules",
        "sample",
        "set_counts",
        "structure",
        "tokens",
        "used",
        "wants_logprobs",
    )

    def __init__(self, tokens: list[int], groups: int) -> None:
        self.tokens = tokens
        self.used = [0] * groups
        """Blocks in the table, a group."""
        self.partitions: list[tuple[bytes, ...]] = [()] * groups
        """Block ids of the whole partitions that are computed, a group (shared_prefix.py)."""
        self.sample: SampleRow | None = None
        """Of the next token."""
        self.pool: Pool | None = None
        """Of a pooled request, which has no sample."""
        self.make_row: Callable[[], SampleRow] | None = None
        """Another sample of the same settings, without penalties and rules."""
        self.reference_row: Callable[[], ReferenceSample] = ReferenceSample.greedy
        """The same in NumPy, for verification that looks at distributions."""
        self.set_counts: Callable[[SampleRow, npt.NDArray[np.int32]], None] = _no_counts
        """Gives a sample the penalties, over these counts of the output."""
        self._later: list[SampleRow] = []
        self.output_counts: npt.NDArray[np.int32] | None = None
        self.biased = False
        self.rules: LogitsRules = NO_RULES
        self.structure: StructureRule | None = None
        """One of the rules; its mask may come late."""
        self._restriction = FREE
        """What `sample` was last told."""
        self.wants_logprobs = False
        self.prompt_alternatives = -1
        """Of a prompt token's log-probability."""
        self.error: str | None = None

    def later_row(self, behind: int) -> SampleRow:
        """The sample of the row behind so many draft tokens, made when it is first asked for."""
        while len(self._later) < behind:
            assert self.make_row is not None
            self._later.append(self.make_row())
        return self._later[behind - 1]

    def forget_blocks(self, blocks: int) -> None:
        """Blocks of the table behind these are the scheduler's again."""
        self.used = [min(used, blocks) for used in self.used]

    def append(self, token: int) -> None:
        """A token was drawn."""
        self.tokens.append(token)
        if self.output_counts is not None:
            self.output_counts[token] += 1

    def bare_rows(self, drafts: int) -> list[SampleRow]:
        """Places in a step for the next token's row and those behind drafts, while it is not known what they may be."""
        assert self.sample is not None
        return [self.sample, *[self.later_row(behind) for behind in range(1, drafts + 1)]]

    def ready_sample(self) -> SampleRow:
        """How the next token is drawn, told what may not be."""
        sample = self.sample
        assert sample is not None
        sample.position = len(self.tokens)
        restriction = self.rules.at(self.tokens)
        if restriction is not self._restriction:
            self._restriction = restriction
            sample.set_banned(restriction.banned)
            sample.set_mask(restriction.mask)
        return sample


class Slots:
    """All slots, and their block tables as one array a group, so that a batch's tables are one gather."""

    def __init__(
        self,
        max_slots: int,
        widths: tuple[int, ...],
        info: ModelInfo,
        new_sample: SampleFactory,
        masker: Masker | None = None,
        jump_forward: bool = True,
    ) -> None:
        """widths: blocks of the longest request, a group. masker: None where no structures are taken."""
        self.tables = [np.zeros((max_slots, width), np.int32) for width in widths]
        self._slots: dict[int, Slot] = {}
        self._info = info
        self._vocab = info.vocab_size
        self._drawable = info.num_tokens
        self._new_sample = new_sample
        self._masker = masker
        self._jump_forward = jump_forward
        self._ends = mask_of(info.eos_token_ids, info.vocab_size)

    def __getitem__(self, slot: int) -> Slot:
        return self._slots[slot]

    def __len__(self) -> int:
        return len(self._slots)

    def release(self, slot: int) -> None:
        left = self._slots.pop(slot, None)
        if left is not None and left.structure is not None:
            left.structure.close()

    def admit(self, new: NewSlot) -> None:
        self.release(new.slot)
        slot = Slot(list(new.tokens), len(self.tables))
        self._slots[new.slot] = slot
        for group, blocks in enumerate(new.cached_blocks):
            self._extend(new.slot, slot, group, blocks)
        try:
            self._set_up(slot, new)
        except Exception as error:  # whatever one request's parameters do, the others must not notice
            slot.error = f"the request cannot be run: {error}"

    def grow(self, work: SeqWork) -> Slot:
        """Appends the work's blocks."""
        slot = self._slots[work.slot]
        for group, blocks in enumerate(work.new_blocks):
            if blocks:
                self._extend(work.slot, slot, group, blocks)
        return slot

    def _extend(self, index: int, slot: Slot, group: int, blocks: tuple[int, ...]) -> None:
        used = slot.used[group]
        # What a window has left behind is never read; any block may stand for it.
        self.tables[group][index, used : used + len(blocks)] = [max(block, 0) for block in blocks]
        slot.used[group] = used + len(blocks)

    def _set_up(self, slot: Slot, new: NewSlot) -> None:
        if not 0 <= min(slot.tokens) <= max(slot.tokens) < self._vocab:
            wrong = next(t for t in slot.tokens if not 0 <= t < self._vocab)
            raise ValueError(f"token id {wrong} is outside the model's vocabulary of {self._vocab}")
        slot.pool = make_pool(new.pooling)
        if slot.pool is not None:
            return
        _check(new.params)
        slot.wants_logprobs = new.params.logprobs is not None
        slot.biased = bool(new.params.logit_bias)
        slot.make_row = partial(self._row, new, self._new_sample)
        slot.reference_row = partial(self._row, new, ReferenceSample)
        slot.sample = slot.make_row()
        self._set_scoring(slot, new)
        self._set_penalties(slot, new)
        slot.rules = join(self._rules(slot, new))

    def _rules(self, slot: Slot, new: NewSlot) -> list[Rule]:
        rules = rules_of(new, self._info)
        params = new.params
        if params.structure is None:
            return rules
        if self._masker is None:
            raise ValueError("structured outputs are switched off (--no-structured-outputs)")
        ahead = self._jump_forward and params.logprobs is None and not rules and not params.ignore_eos
        state = self._masker.open(new.slot, params.structure, ahead)
        slot.structure = StructureRule(state, new.num_prompt, self._ends, params.ignore_eos)
        slot.structure.want(slot.tokens)
        return [*rules, slot.structure]

    def _row(self, new: NewSlot, make: Callable[[float, int, float, float, int, int, int], S]) -> S:
        """A sample with the settings that no position changes."""
        params = new.params
        alternatives = -1 if params.logprobs is None else params.logprobs
        sample = make(
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            new.seed & _SEED_MASK,
            new.choice,
            alternatives,
        )
        if params.logit_bias:
            self._set_bias(sample, params)
        return sample

    def _set_scoring(self, slot: Slot, new: NewSlot) -> None:
        if new.params.prompt_logprobs is None:
            return
        slot.prompt_alternatives = new.params.prompt_logprobs
        unknown = [token for token in slot.tokens[: new.num_prompt] if token >= self._drawable]
        if unknown:
            raise ValueError(
                f"prompt_logprobs has no value for token id {unknown[0]}, which the tokeniser does not know"
            )

    def _set_penalties(self, slot: Slot, new: NewSlot) -> None:
        params = new.params
        if params.repetition_penalty == 1 and params.presence_penalty == 0 and params.frequency_penalty == 0:
            return
        prompt = self._count(slot.tokens[: new.num_prompt]) if params.repetition_penalty != 1 else None
        slot.output_counts = self._count(slot.tokens[new.num_prompt :])
        slot.set_counts = partial(_penalise, params, prompt)
        assert slot.sample is not None
        slot.set_counts(slot.sample, slot.output_counts)

    def _set_bias(self, sample: SampleRow, params: SamplingParams) -> None:
        wrong = [token for token, _ in params.logit_bias if not 0 <= token < self._vocab]
        if wrong:
            raise ValueError(f"logit_bias names token id {wrong[0]}, outside the model's vocabulary of {self._vocab}")
        # Padding rows of the head are never drawn, whatever their bias.
        pairs = [pair for pair in params.logit_bias if pair[0] < self._drawable]
        sample.set_bias(
            np.array([token for token, _ in pairs], np.int32), np.array([value for _, value in pairs], np.float32)
        )

    def _count(self, tokens: list[int]) -> npt.NDArray[np.int32]:
        return np.bincount(np.array(tokens, np.int64), minlength=self._vocab).astype(np.int32)


def _penalise(
    params: SamplingParams, prompt: npt.NDArray[np.int32] | None, sample: SampleRow, output: npt.NDArray[np.int32]
) -> None:
    sample.set_penalties(params.repetition_penalty, params.presence_penalty, params.frequency_penalty, prompt, output)


def _no_counts(sample: SampleRow, output: npt.NDArray[np.int32]) -> None:
    raise AssertionError("a request without penalties counts nothing")


def _check(params: SamplingParams) -> None:
    """What a sampler takes. The server has checked it; a back end would fail the whole step."""
    bounds = {
        "temperature": (params.temperature, 0.0, math.inf),
        "top_k": (params.top_k, 0, (1 << 31) - 1),
        "min_p": (params.min_p, 0.0, 1.0),
        "top_p": (params.top_p, 0.0, 1.0),
        "logprobs": (params.logprobs or 0, 0, MAX_ALTERNATIVES),
        "prompt_logprobs": (params.prompt_logprobs or 0, 0, MAX_ALTERNATIVES),
        "repetition_penalty": (params.repetition_penalty, 1e-6, 1e6),
    }
    for name, (value, low, high) in bounds.items():
        if not (low <= value <= high and value < math.inf) or (value == 0 and name == "top_p"):
            raise ValueError(f"{name} {value} is out of range")
