"""What the host spends on a step: plan and retire must stay small beside the step itself."""

from __future__ import annotations

import time

import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.types import SeqOutput, StepPlan, StepResult
from tests.support.ledger import ledger_info, make_request


class Instant:
    """An executor that draws at once, so that only the host's work is left."""

    def __init__(self, blocks: int) -> None:
        self.info = ledger_info()
        self.num_blocks = (blocks,)
        self._plan: StepPlan | None = None

    def submit(self, plan: StepPlan) -> Instant:
        self._plan = plan
        return self

    def result(self) -> StepResult:
        assert self._plan is not None
        outputs = [SeqOutput((5,)) if work.sample else SeqOutput() for work in self._plan.work]
        return StepResult(self._plan.step_id, tuple(outputs), 0.0)

    def close(self) -> None:
        return None


def _median_step(decodes: int, waiting: int) -> float:
    """Seconds of this thread that a step takes, plan to statistics."""
    executor = Instant(blocks=decodes * 34)
    config = EngineConfig(
        model=ModelConfig(max_model_len=2048),
        kv=KVConfig(size_tokens=decodes * 34 * 32),
        scheduler=SchedulerConfig(max_num_seqs=decodes + 1),
    )
    core = EngineCore(config, executor)
    for request_id in range(decodes):
        core.handle(make_request(request_id, [7 + request_id] * 128, 900, ignore_eos=True))
    while core.stats().generated_tokens < decodes * 3:
        core.step()
    for request_id in range(decodes, decodes + waiting):
        core.handle(make_request(request_id, [9] * 200, 40, ignore_eos=True))
    times = []
    for _ in range(60):
        began = time.thread_time()
        core.step()
        times.append(time.thread_time() - began)
    return sorted(times)[len(times) // 2]


@pytest.mark.parametrize(("decodes", "waiting", "most"), [(32, 0, 0.4e-3), (128, 0, 1.5e-3), (32, 1000, 1.5e-3)])
def test_a_step_of_decodes_costs_the_host_little(decodes: int, waiting: int, most: float) -> None:
    best = min(_median_step(decodes, waiting) for _ in range(3))
    print(f"{decodes} decodes, {waiting} waiting: {best * 1e3:.3f} ms")
    assert best < most
