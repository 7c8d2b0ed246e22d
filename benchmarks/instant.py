"""An executor that draws the same token at once: what is left is the host's work, with real scheduling and paging."""

from __future__ import annotations

from octavo.types import KVGroupSpec, ModelInfo, SeqOutput, StepPlan, StepResult

VOCAB = 50_000
TOKEN = 5


def instant_info(max_context: int = 1 << 20) -> ModelInfo:
    """A model of one full group."""
    return ModelInfo(
        name="instant",
        architecture="instant",
        vocab_size=VOCAB,
        num_tokens=VOCAB,
        max_context=max_context,
        eos_token_ids=(2,),
        kv_groups=(KVGroupSpec(name="full", kind="full", layers=(0,), bytes_per_token=8),),
        weights_id="instant",
        numerics_id="instant",
        weights_bytes=0,
    )


class Instant:
    """Implements `types.Executor` and the handle of its one step in flight; counts the rows of its steps."""

    def __init__(self, blocks: int) -> None:
        self.info = instant_info()
        self.num_blocks = (blocks,)
        self.rows = 0
        self._plan: StepPlan | None = None

    def submit(self, plan: StepPlan) -> Instant:
        self._plan = plan
        self.rows += sum(work.count for work in plan.work)
        return self

    def result(self) -> StepResult:
        assert self._plan is not None
        outputs = [SeqOutput((TOKEN,)) if work.sample else SeqOutput() for work in self._plan.work]
        return StepResult(self._plan.step_id, tuple(outputs), 0.0)

    def close(self) -> None:
        return None
