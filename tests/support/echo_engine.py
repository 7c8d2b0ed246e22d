"""An engine whose model repeats its prompt, so that a test can choose the exact tokens of an answer.

Started like the real one: `python -m tests.support.echo_engine --fd N`. Everything but the forward pass is real: the
process, the channel, the core, the scheduler and the pages. The answer to a prompt is the prompt's tokens and then
the end of sequence; with `ignore_eos`, or below `min_tokens`, the prompt again. A step takes a millisecond, as a small
model's would. A chat template can have less repeated than all of the prompt (tests/support/scripted.py): what follows
two `SCRIPT` in a row, up to the next one. Two prompts misbehave: one that begins with `FAIL` ends in an error once it
has said as many tokens as its second token says; one that begins with `DIE` takes all memory then
(tests/support/system.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from octavo.config import EngineConfig
from octavo.engine import guard
from octavo.engine.process import serve
from octavo.models.tokenizer import load_tokenizer
from octavo.types import (
    KVGroupSpec,
    ModelInfo,
    NewSlot,
    SeqOutput,
    SeqWork,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from tests.support.system import end_for_want_of_memory

STEP_SECONDS = 0.001
EOS = 2
SCRIPT = 0
"""Id of "<|endoftext|>"."""
FAIL = 266
"""Id of "ll", which no text of a test begins with."""
DIE = 267
"""Id of two spaces."""


class EchoHandle:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class Echo:
    """See the module; implements `types.Executor`."""

    def __init__(self, config: EngineConfig) -> None:
        tokenizer = load_tokenizer(config.model.path)
        length = config.model.max_model_len or 8192
        tokens = config.kv.size_tokens or 32768
        self.config = replace(config, model=replace(config.model, max_model_len=min(length, tokens)))
        self.report = ("echo",)
        self.num_blocks = (tokens // config.kv.block_size,)
        self.pages = None
        self.structures = None
        self.info = ModelInfo(
            name=config.model.name or "echo",
            architecture="echo",
            vocab_size=tokenizer.num_tokens,
            num_tokens=tokenizer.num_tokens,
            max_context=length,
            eos_token_ids=(EOS,),
            kv_groups=(KVGroupSpec(name="full", kind="full", layers=(0,), bytes_per_token=8),),
            weights_id="echo",
            numerics_id="echo",
            weights_bytes=0,
        )
        self._slots: dict[int, tuple[NewSlot, list[int], int]] = {}
        """Slot -> what entered it, what it repeats, and how many tokens it has generated."""

    def submit(self, plan: StepPlan) -> EchoHandle:
        for slot in plan.released:
            del self._slots[slot]
        for new in plan.new:
            self._slots[new.slot] = (new, _script(new.tokens[: new.num_prompt]), len(new.tokens) - new.num_prompt)
        time.sleep(STEP_SECONDS)
        return EchoHandle(StepResult(plan.step_id, tuple(map(self._output, plan.work)), STEP_SECONDS))

    def close(self) -> None:
        return None

    def _output(self, work: SeqWork) -> SeqOutput:
        scores = self._scores(work) if work.score != (0, 0) else None
        output = self._drawn(work) if work.sample else SeqOutput()
        return msgspec.structs.replace(output, prompt_logprobs=scores)

    def _scores(self, work: SeqWork) -> tuple[TokenLogprobs, ...]:
        """As those of drawn tokens."""
        new = self._slots[work.slot][0]
        alternatives = new.params.prompt_logprobs or 0
        tops = [
            [(new.tokens[p + 1] + i) % self.info.num_tokens for i in range(alternatives)] for p in range(*work.score)
        ]
        values = [-0.5 - i for i in range(alternatives)]
        return tuple(TokenLogprobs(-0.5, top, values, 1) for top in tops)

    def _drawn(self, work: SeqWork) -> SeqOutput:
        new, prompt, generated = self._slots[work.slot]
        if prompt and prompt[0] in (FAIL, DIE) and generated == prompt[1]:
            if prompt[0] == DIE:
                end_for_want_of_memory()
            return SeqOutput(error="The request was made to fail.")
        self._slots[work.slot] = (new, prompt, generated + 1)
        token = _next(new, prompt, generated)
        if new.params.logprobs is None:
            return SeqOutput((token,))
        top = [(token + i) % self.info.num_tokens for i in range(new.params.logprobs)]
        values = [-0.5 - i for i in range(len(top))]
        return SeqOutput((token,), (TokenLogprobs(-0.5, top, values),))


def _script(prompt: list[int]) -> list[int]:
    begin = next((at for at in range(len(prompt) - 2, -1, -1) if prompt[at : at + 2] == [SCRIPT, SCRIPT]), None)
    if begin is None:
        return prompt
    rest = prompt[begin + 2 :]
    return rest[: rest.index(SCRIPT)] if SCRIPT in rest else rest


def _next(new: NewSlot, prompt: list[int], generated: int) -> int:
    params = new.params
    may_end = not params.ignore_eos and generated >= params.min_tokens
    return EOS if not prompt or (may_end and generated >= len(prompt)) else prompt[generated % len(prompt)]


def build_echo(config: EngineConfig, progress: Callable[[str, float | None], None]) -> Echo:
    progress("learning to repeat", None)
    return Echo(config)


if __name__ == "__main__":
    guard.end(serve(guard.begin(), build_echo))
