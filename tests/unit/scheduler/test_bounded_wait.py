"""Nobody waits longer than the bound that chunking.py proves, whatever else decodes and arrives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.scheduler.chunking import wait_bound
from octavo.scheduler.state import RequestState, Status
from tests.unit.scheduler.test_scheduler import Bench

Arrival = tuple[int, int, int]
"""(step, prompt tokens, tokens to generate)"""
ARRIVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 150), st.integers(1, 30)), min_size=1, max_size=16)
TARGETS = st.sampled_from([None, 0.1, 0.99, 1.02, 5.0])
"""ms, where every step takes one."""


@settings(max_examples=30)
@given(arrivals=ARRIVALS, budget=st.integers(1, 40), seqs=st.sampled_from([2, 5, 16]), target=TARGETS)
def test_the_oldest_prompt_draws_within_the_bound(
    arrivals: list[Arrival], budget: int, seqs: int, target: float | None
) -> None:
    bench = Bench(blocks=256, max_num_seqs=seqs, max_num_batched_tokens=budget, target_itl_ms=target)
    bench.step_seconds = 0.001
    todo = sorted(arrivals)
    waiting: list[RequestState] = []
    head: RequestState | None = None
    left = step = 0
    while todo or bench.scheduler.has_work:
        while todo and todo[0][0] <= step:
            _, prompt, tokens = todo.pop(0)
            waiting.append(bench.add(len(waiting), prompt, tokens, ignore_eos=True))
        step += 1
        open_prompts = [r for r in waiting if r.status is Status.RUNNING and not r.num_generated]
        oldest = min(open_prompts, key=lambda request: request.order, default=None)
        if oldest is not head:
            # One step more: a request is admitted inside the step that may already compute it.
            head, left = oldest, 0 if oldest is None else wait_bound(oldest.remaining, budget) + 1
        assert head is None or left > 0, f"{head.remaining} positions are left"
        left -= 1
        if bench.scheduler.has_work:
            bench.step()
            bench.scheduler.take_deltas()
    assert all(request.status is Status.FINISHED for request in waiting)


@settings(max_examples=25)
@given(arrivals=ARRIVALS, seqs=st.sampled_from([1, 3]))
def test_nobody_is_admitted_before_one_that_came_earlier_where_that_takes_its_room(
    arrivals: list[Arrival], seqs: int
) -> None:
    """From being the first of the queue on, a request waits no longer than those that run."""
    bench = Bench(blocks=8, max_num_seqs=seqs, max_num_batched_tokens=64)
    requests = [bench.add(i, prompt, tokens, ignore_eos=True) for i, (_, prompt, tokens) in enumerate(arrivals)]
    head: RequestState | None = None
    before: set[RequestState] = set()
    while bench.scheduler.has_work:
        queue = list(bench.scheduler.waiting)
        first = queue[0] if queue else None
        if first is not head:
            head, before = first, set(bench.scheduler.running)
        others = any(request.status is not Status.FINISHED for request in before)
        bench.step()
        bench.scheduler.take_deltas()
        assert others or head is None or head.status is not Status.WAITING, "those it waited for are gone"
    assert all(request.status is Status.FINISHED for request in requests)
