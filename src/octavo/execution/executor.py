"""The executor: obeys step plans on one machine, in the calling thread.

Owns the slots and the forward pass. Life: made by `factory.build_executor`, `submit(plan)` once a step, `close()`.
A request that cannot go on gets an error in its own output; the others of the step never notice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.config import EngineConfig
from octavo.execution.draft_rows import DraftRows
from octavo.execution.forward import Forward
from octavo.execution.inputs import StepInputs, build_inputs
from octavo.execution.scoring import score_prompts
from octavo.execution.shared_prefix import make_sharing
from octavo.execution.slots import Slot, Slots
from octavo.execution.structured import Patience
from octavo.execution.verification import make_verifier
from octavo.ops.base import Drawn, SampleRow
from octavo.structure.masker import Masker
from octavo.types import (
    ModelInfo,
    NewSlot,
    SeqOutput,
    SeqWork,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

_NOTHING = SeqOutput()


class DoneHandle:
    """A step that is over."""

    __slots__ = ("_result",)

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class LocalExecutor:
    """See `types.Executor`."""

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        num_blocks: tuple[int, ...],
        report: tuple[str, ...],
        forward: Forward,
        masker: Masker | None = None,
    ) -> None:
        """config is resolved; report is what to tell the user at start. masker: of structured outputs."""
        self.config = config
        self.info = info
        self.num_blocks = num_blocks
        self.report = report
        self.forward = forward
        self.pages = forward.pages
        length = config.model.max_model_len
        assert length is not None
        width = -(-(length + 1) // config.kv.block_size)
        self.slots = Slots(
            config.scheduler.max_num_seqs,
            (width,) * len(num_blocks),
            info,
            forward.new_sample,
            masker,
            config.execution.jump_forward,
        )
        self.masker = masker
        windows = [group.window for group in info.kv_groups]
        self.sharing = make_sharing(bool(config.execution.shared_prefix_attention), windows, config.kv.block_size)
        self._draft_rows = DraftRows()
        self._verifier = make_verifier(config.speculative, forward, info.num_tokens)
        self._block_size = config.kv.block_size
        self._closed = False

    @property
    def structures(self) -> Masker | None:
        """Which structures of outputs can be had; None where they are switched off."""
        return self.masker

    def submit(self, plan: StepPlan) -> DoneHandle:
        began = time.perf_counter()
        for slot in plan.released:
            self.slots.release(slot)
        for new in plan.new:
            self.slots.admit(new)
        outputs = self._run(plan.work) if plan.work else ()
        return DoneHandle(StepResult(plan.step_id, outputs, time.perf_counter() - began))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.forward.close()
            if self.masker is not None:
                self.masker.close()

    def prompt_logits(self, new: NewSlot, blocks: tuple[tuple[int, ...], ...]) -> npt.NDArray[np.float32]:
        """Logits at every position of one request, computed in one step of its own.

        For tests and checks: the tokens must fit one step's rows and logit rows. The slot is left released.
        """
        self.slots.admit(new)
        work = SeqWork(new.slot, 0, len(new.tokens), blocks, sample=False)
        inputs = build_inputs(self.slots, [(work, self.slots.grow(work))])
        rows = np.arange(len(new.tokens), dtype=np.int32)
        self.forward.run(StepInputs(inputs.tokens, inputs.seqs, inputs.tables, rows, []))
        self.slots.release(new.slot)
        return self.forward.logits(len(rows))

    def _run(self, work: tuple[SeqWork, ...]) -> tuple[SeqOutput, ...]:
        slots = [self.slots.grow(w) for w in work]
        works = [(w, slot) for w, slot in zip(work, slots, strict=True) if slot.error is None]
        self._draft_rows.begin()
        sampled = [(w, slot) for w, slot in works if w.sample]
        structured = [slot for _, slot in sampled if slot.structure is not None]
        patience = Patience(alone=len(structured) == len(sampled)) if structured else None
        drawn = self._draw(works, sampled, patience) if works else []
        outputs: list[SeqOutput] = []
        row = 0
        for w, slot in zip(work, slots, strict=True):
            if slot.error is not None:
                outputs.append(SeqOutput(error=slot.error))
            elif slot.pool is not None and w.start + w.count == len(slot.tokens):
                outputs.append(_pooled(slot.pool.vector()))
            elif not w.sample:
                outputs.append(_NOTHING)
            else:
                rows = 1 + len(w.drafts)
                outputs.append(self._output(slot, w.drafts, drawn[row : row + rows], row))
                row += rows
        scores = score_prompts(self.forward, works) if any(w.score != (0, 0) for w, _ in works) else {}
        for index, (w, slot) in enumerate(zip(work, slots, strict=True)):
            if w.slot in scores and outputs[index].error is None:
                outputs[index] = _with_scores(outputs[index], slot, scores[w.slot])
        if patience is not None:
            self._jump(slots, outputs, patience)
        return tuple(outputs)

    def _take_hidden(self, works: Sequence[tuple[SeqWork, Slot]], count: int) -> None:
        """Gives pooled requests their rows, of which there are `count`."""
        if not count:
            return
        states = self.forward.hidden(count)
        row = 0
        for w, slot in works:
            if slot.pool is not None:
                wanted = slot.pool.wanted(w.count, w.start + w.count == len(slot.tokens))
                slot.pool.take(states[row : row + wanted])
                row += wanted

    def _draw(
        self, works: list[tuple[SeqWork, Slot]], sampled: list[tuple[SeqWork, Slot]], patience: Patience | None
    ) -> Sequence[Drawn]:
        """The forward pass and the draws. patience: with structures, whose masks are waited for before the draws."""
        inputs = build_inputs(self.slots, works, self.sharing, self._draft_rows)
        if patience is None:
            drawn = self.forward.run(inputs)
            self._take_hidden(works, len(inputs.hidden_rows))
            return drawn
        assert self.masker is not None
        self.masker.flush()
        samples = list(inputs.samples)

        def late() -> list[SampleRow]:
            patience.for_masks()
            row = 0
            for work, slot in sampled:
                rows = 1 + len(work.drafts)
                if slot.structure is not None and slot.structure.settle(slot.tokens, work.drafts, patience):
                    ready = [slot.ready_sample(), *self._draft_rows.of(slot, work.drafts)]
                    samples[row : row + rows] = ready
                row += rows
            return samples

        drawn = self.forward.run(replace(inputs, late=late))
        self._take_hidden(works, len(inputs.hidden_rows))
        return drawn

    def _jump(self, slots: list[Slot], outputs: list[SeqOutput], patience: Patience) -> None:
        """Adds the tokens that alone may follow the drawn ones."""
        assert self.masker is not None
        self.masker.flush()
        patience.for_jumps()
        for index, (slot, output) in enumerate(zip(slots, outputs, strict=True)):
            if slot.structure is None or not output.tokens or output.tokens[-1] in self.info.eos_token_ids:
                continue
            forced = slot.structure.forced(slot.tokens, patience.left)
            for token in forced:
                slot.append(token)
            if forced:
                outputs[index] = msgspec.structs.replace(output, forced=tuple(forced))

    def _is_sound(self, row: int) -> bool:
        """The row's logits are numbers."""
        return bool(np.isfinite(self.forward.logits(row + 1)[row, : self.info.num_tokens]).all())

    def _output(self, slot: Slot, drafts: tuple[int, ...], draws: Sequence[Drawn], row: int) -> SeqOutput:
        """What the draws of a request's rows come to."""
        if slot.structure is not None and (draws[0][0] >= 0 or self._is_sound(row)):
            verdict = slot.structure.verdict(slot.tokens, draws[0][0])
            if verdict is not None:
                slot.error = verdict.error
                return verdict
        taken = self._verifier.taken(slot, drafts, draws, row)
        if not taken:
            slot.error = _undrawable(self.forward.logits(row + 1)[row, : self.info.num_tokens], slot)
            return SeqOutput(error=slot.error)
        tokens = tuple([draw[0] for draw in taken])
        for token in tokens:
            slot.append(token)
        if drafts:
            slot.forget_blocks(-(-(len(slot.tokens) - 1) // self._block_size))
        if slot.structure is not None and tokens[-1] not in self.info.eos_token_ids:
            slot.structure.want(slot.tokens)
        if not slot.wants_logprobs:
            return SeqOutput(tokens)
        return SeqOutput(tokens, tuple([TokenLogprobs(draw[1], draw[2], draw[3]) for draw in taken]))


def _with_scores(output: SeqOutput, slot: Slot, scores: tuple[TokenLogprobs, ...] | None) -> SeqOutput:
    if scores is not None:
        return msgspec.structs.replace(output, prompt_logprobs=scores)
    slot.error = "the model's logits for this request are not finite; the weights or the input are damaged"
    return SeqOutput(error=slot.error)


def _pooled(vector: npt.NDArray[np.float32]) -> SeqOutput:
    if not np.isfinite(vector).all():
        return SeqOutput(error="the model's hidden states for this request are not finite; the weights are damaged")
    return SeqOutput(vector=vector.astype("<f4").tobytes())


def _undrawable(logits: npt.NDArray[np.float32], slot: Slot) -> str:
    """Why no token could be drawn from a row; only what the request sets is named."""
    if not np.isfinite(logits).all():
        kind = "not numbers (NaN)" if np.isnan(logits).any() else "not finite"
        return f"the model's logits for this request are {kind}; the weights or the input are damaged"
    settings = {"logit_bias": slot.biased, "penalties": slot.output_counts is not None}
    causes = [name for name, used in settings.items() if used] + slot.rules.causes(slot.tokens)
    causes = causes or ["the model's logits"]
    return f"no token may be drawn: every one is forbidden by {' and '.join(causes)}"
