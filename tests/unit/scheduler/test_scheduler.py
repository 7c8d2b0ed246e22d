"""The scheduler alone: what a plan holds, in which order, and when requests join and leave."""

from __future__ import annotations

from octavo.config import SchedulerConfig
from octavo.kvcache.group import Group
from octavo.kvcache.keys import KeyContext
from octavo.kvcache.manager import KVManager
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.state import RequestState, Status
from octavo.types import FinishReason, SeqOutput, StepPlan, StepResult
from tests.support.ledger import EOS, make_request

LIMIT = 4096


class Bench:
    """A scheduler, and an executor that draws whatever it is told."""

    def __init__(self, blocks: int = 128, prefix_cache: bool = True, **config: object) -> None:
        self.kv = KVManager([Group(blocks, prefix_cache)], 32, KeyContext("w", "n", 32))
        self.scheduler = Scheduler(SchedulerConfig(**config), self.kv)  # type: ignore[arg-type]
        self._arrivals = 0
        self.step_seconds = 0.0
        """What every step takes; 0 teaches the step-time model nothing."""

    def add(self, request_id: int, prompt: int | list[int], max_tokens: int = 100, **fields: object) -> RequestState:
        tokens = [10 + request_id] * prompt if isinstance(prompt, int) else prompt
        message = make_request(request_id, tokens, max_tokens, **fields)
        request = RequestState(message, self._arrivals, min(LIMIT, self.kv.capacity_tokens), EOS, self.kv.sequence())
        self._arrivals += 1
        self.scheduler.add(request)
        return request

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan is not None
        return plan

    def retire(self, plan: StepPlan, token: int = 7) -> None:
        outputs = [SeqOutput((token,)) if work.sample else SeqOutput() for work in plan.work]
        self.scheduler.retire(StepResult(plan.step_id, tuple(outputs), self.step_seconds))
        self.kv.validate()

    def step(self, token: int = 7) -> list[tuple[int, int]]:
        """One step; (slot, count) of its work."""
        plan = self.plan()
        self.retire(plan, token)
        return [(work.slot, work.count) for work in plan.work]


def test_decodes_come_before_prompts_and_running_requests_keep_their_order() -> None:
    bench = Bench(max_num_batched_tokens=64)
    first, second = bench.add(1, 5), bench.add(2, 5)
    bench.step()
    bench.add(3, 100)
    plan = bench.plan()
    assert [work.slot for work in plan.work] == [first.slot, second.slot, plan.new[0].slot]
    assert [work.count for work in plan.work] == [1, 1, 62]


def test_a_prompt_is_computed_in_chunks_and_samples_only_at_its_end() -> None:
    bench = Bench(max_num_batched_tokens=32)
    bench.add(1, 80)
    plans = []
    for _ in range(4):
        plans.append(bench.plan())
        bench.retire(plans[-1])
    works = [plan.work[0] for plan in plans]
    assert [(work.start, work.count, work.sample) for work in works] == [
        (0, 32, False),
        (32, 32, False),
        (64, 16, True),
        (80, 1, True),
    ]
    assert [len(plan.new) for plan in plans] == [1, 0, 0, 0]
    assert [len(work.new_blocks[0]) for work in works] == [1, 1, 1, 0]


def test_the_budget_is_shared_by_several_prompts() -> None:
    bench = Bench(max_num_batched_tokens=64)
    bench.add(1, 1000)
    bench.add(2, 20)
    bench.add(3, 500)
    counts = dict(bench.step())
    assert sum(counts.values()) == 64
    assert sorted(counts.values()) == [16, 20, 28]


def test_whole_prompts_are_never_cut_and_hold_decodes_back_where_they_must() -> None:
    bench = Bench(max_num_batched_tokens=64, chunked_prefill=False)
    bench.add(1, 60)
    bench.add(2, 30)
    assert [count for _, count in bench.step()] == [60]
    assert [count for _, count in bench.step()] == [1, 30]
    bench.add(3, 64)
    assert [count for _, count in bench.step()] == [1, 1], "the third is admitted"
    assert [count for _, count in bench.step()] == [64]
    assert [count for _, count in bench.step()] == [1, 1, 1]


def test_a_static_batch_is_filled_once_and_runs_to_its_end() -> None:
    bench = Bench(policy="static", max_num_batched_tokens=64, max_num_seqs=2)
    first = bench.add(1, 10, 2)
    second = bench.add(2, 10, 5)
    third = bench.add(3, 10, 2)
    bench.step()
    late = bench.add(4, 10, 2)
    for _ in range(4):
        assert third.status is late.status is Status.WAITING
        bench.step()
    assert first.status is second.status is Status.FINISHED
    bench.step()
    assert third.status is late.status is Status.RUNNING


def test_a_continuous_batch_fills_a_place_at_once() -> None:
    bench = Bench(max_num_seqs=2)
    bench.add(1, 10, 2)
    bench.add(2, 10, 5)
    third = bench.add(3, 10, 2)
    bench.step()
    bench.step()
    assert third.status is Status.WAITING
    bench.step()
    assert third.status is Status.RUNNING


def test_lower_priority_numbers_run_first_and_are_preempted_last() -> None:
    bench = Bench(blocks=4, prefix_cache=False, max_num_seqs=2)
    low = bench.add(1, 31, priority=1)
    mid = bench.add(2, 31)
    high = bench.add(3, 31, priority=-1)
    bench.step()
    assert (high.status, mid.status, low.status) == (Status.RUNNING, Status.RUNNING, Status.WAITING)
    for _ in range(80):
        bench.step()
    assert (high.status, mid.status) == (Status.RUNNING, Status.PREEMPTED)


def test_a_budget_smaller_than_the_batch_serves_everybody_in_turn() -> None:
    bench = Bench(policy="static", max_num_batched_tokens=4)
    requests = [bench.add(i, 1, 40) for i in range(10)]
    for _ in range(25):
        bench.step()
    assert {request.num_generated for request in requests} == {10}


def test_a_request_with_an_unknown_token_is_not_planned_again() -> None:
    bench = Bench()
    bench.add(1, 10)
    bench.add(2, 10)
    plan = bench.plan()
    assert bench.scheduler.plan() is None
    bench.retire(plan)
    assert len(bench.plan().work) == 2


def test_chunks_of_one_prompt_may_be_in_flight_together() -> None:
    bench = Bench(max_num_batched_tokens=32)
    bench.add(1, 64)
    first, second = bench.plan(), bench.plan()
    assert [(plan.work[0].start, plan.work[0].sample) for plan in (first, second)] == [(0, False), (32, True)]
    bench.retire(first)
    bench.retire(second)


def test_keys_are_published_when_a_step_retires_not_when_it_is_planned() -> None:
    bench = Bench()
    tokens = list(range(100, 164))
    bench.add(1, tokens)
    plan = bench.plan()
    assert len(bench.kv.groups[0].cache) == 0
    bench.retire(plan)
    assert len(bench.kv.groups[0].cache) == 2
    again = bench.add(2, tokens)
    plan = bench.plan()
    assert again.kv.matched == 64
    work = plan.work[-1]
    assert (work.start, work.count, work.store_from, work.new_blocks) == (63, 1, 64, ((),))
    assert plan.new[0].cached_blocks == (tuple(again.kv.tables[0].blocks),)


def test_stop_ids_end_a_request_but_not_before_min_tokens() -> None:
    bench = Bench()
    plain = bench.add(1, 4)
    patient = bench.add(2, 4, min_tokens=2)
    ignoring = bench.add(3, 4, ignore_eos=True, stop_token_ids=(9,))
    bench.step(token=EOS[0])
    statuses = (plain.status, patient.status, ignoring.status)
    assert statuses == (Status.FINISHED, Status.RUNNING, Status.RUNNING)
    bench.step(token=EOS[0])
    assert patient.status is Status.RUNNING
    bench.step(token=EOS[0])
    assert patient.status is Status.FINISHED
    bench.step(token=9)
    assert ignoring.status is Status.FINISHED
    finals = {delta.request_id: delta for delta in bench.scheduler.take_deltas() if delta.finish is not None}
    assert [(finals[i].finish, finals[i].stop_token) for i in (1, 2, 3)] == [
        (FinishReason.STOP, 2),
        (FinishReason.STOP, 2),
        (FinishReason.STOP, 9),
    ]


def test_replayed_requests_count_what_they_generated_before() -> None:
    bench = Bench()
    bench.add(1, 4, 3, generated=[7, 7, 7])
    bench.add(2, 4, 3, generated=[7, EOS[0]])
    third = bench.add(3, 4, 3, generated=[7, 7])
    finals = {delta.request_id: delta for delta in bench.scheduler.take_deltas()}
    assert (finals[1].finish, finals[1].tokens) == (FinishReason.LENGTH, [])
    assert (finals[2].finish, finals[2].tokens) == (FinishReason.STOP, [])
    plan = bench.plan()
    assert (plan.new[0].tokens, plan.new[0].num_prompt) == ([13, 13, 13, 13, 7, 7], 4)
    bench.retire(plan)
    assert third.status is Status.FINISHED


def test_several_accepted_tokens_are_cut_where_the_request_ends() -> None:
    bench = Bench()
    request = bench.add(1, 4, 10)
    bench.step()
    plan = bench.plan()
    bench.scheduler.take_deltas()
    bench.scheduler.retire(StepResult(plan.step_id, (SeqOutput((7, EOS[0], 8)),), 0.0))
    (delta,) = bench.scheduler.take_deltas()
    assert (delta.tokens, delta.finish, delta.stop_token) == ([7, EOS[0]], FinishReason.STOP, EOS[0])
    assert request.status is Status.FINISHED


def test_released_slots_are_told_once_and_used_again() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add(1, 4, 1)
    bench.add(2, 4, 1)
    first = bench.plan()
    bench.retire(first)
    second = bench.plan()
    assert second.released == (first.work[0].slot,)
    assert second.new[0].slot == first.work[0].slot
    bench.retire(second)
    bench.add(3, 4, 1)
    assert bench.plan().released == (second.work[0].slot,)
