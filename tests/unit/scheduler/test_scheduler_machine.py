"""The engine core under random messages and steps: progress, order, and one final reply for everybody."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.scheduler.admission import MAX_PREEMPTIONS
from octavo.types import Abort, Drain, Pooling
from tests.support.engine import Drafts, Rig
from tests.support.ledger import make_request

LENGTHS = st.sampled_from([1, 31, 32, 33, 64, 100, 200])


class CoreMachine(RuleBasedStateMachine):
    """Random arrivals, aborts and steps; `Rig` compares every answer with the naive loop's."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.drained = False

    @initialize(
        policy=st.sampled_from(["continuous", "static"]),
        chunked=st.booleans(),
        prefix_cache=st.booleans(),
        paged=st.booleans(),
        budget=st.sampled_from([1, 7, 64]),
        depth=st.integers(1, 2),
        pool=st.sampled_from([128, 160, 320]),
        seqs=st.sampled_from([1, 4]),
        windows=st.sampled_from([(), (), (16,), (40, 70)]),
        drafts=st.none() | st.tuples(st.sampled_from([0.0, 0.6, 0.9, 1.0]), st.integers(1, 9), st.booleans()),
        luck=st.randoms(use_true_random=False),
        extras=st.fixed_dictionaries(
            {
                "partial_preemption": st.booleans(),
                "tenant_fairness": st.booleans(),
                "watermark": st.sampled_from([0.0, 0.2]),
                "order": st.sampled_from(["priority", "priority", "fcfs"]),
                "target_itl_ms": st.none() | st.just(1.0),
            }
        ),
    )
    def start(
        self,
        policy: str,
        chunked: bool,
        prefix_cache: bool,
        paged: bool,
        budget: int,
        depth: int,
        pool: int,
        seqs: int,
        windows: tuple[int, ...],
        drafts: tuple[float, int, bool] | None,
        luck: random.Random,
        extras: dict[str, object],
    ) -> None:
        self.priorities = extras["order"] == "priority"
        if not chunked:
            extras["target_itl_ms"] = None
        self.rig = Rig(
            pool_tokens=pool,
            max_model_len=128,
            windows=windows,
            drafts=drafts and Drafts(drafts[0], luck, drafts[1], drafts[2]),
            depth=depth,
            paged=paged,
            prefix_cache=prefix_cache,
            policy=policy,
            chunked_prefill=chunked,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            max_queue_requests=6,
            **extras,
        )

    @rule(
        length=LENGTHS,
        family=st.integers(3, 4),
        tokens=st.sampled_from([1, 5, 90]),
        scored=st.sampled_from([None, None, "all", "alone"]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from(["", "a"]),
        pooling=st.sampled_from([None, None, None, *Pooling]),
    )
    def send(
        self,
        length: int,
        family: int,
        tokens: int,
        scored: str | None,
        priority: int,
        tenant: str,
        pooling: Pooling | None,
    ) -> None:
        if pooling is not None:
            scored = None
        fields = {
            "pooling": pooling,
            "priority": priority if self.priorities else 0,
            "tenant": tenant,
            "ignore_eos": family == 3,
            "seed": 1,
            "prompt_logprobs": None if scored is None else 0,
        }
        self.rig.send(make_request(self.sent, [family] * length, 0 if scored == "alone" else tokens, **fields))
        self.sent += 1

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.rig.send(Abort([data.draw(st.integers(0, self.sent + 1))]))

    @rule(count=st.integers(1, 10))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.rig.step()

    @rule(sure=st.sampled_from([False] * 9 + [True]))
    def drain(self, sure: bool) -> None:
        if sure:
            self.rig.send(Drain())
            self.drained = True

    @invariant()
    def in_order(self) -> None:
        scheduler = self.rig.core.scheduler
        for queue in (scheduler.running, scheduler.waiting):
            orders = [request.order for request in queue]
            assert orders == sorted(orders)
        assert len(scheduler.running) <= self.rig.config.scheduler.max_num_seqs
        assert scheduler.waiting.tokens == sum(len(request.tokens) for request in scheduler.waiting)
        assert all(request.preemptions <= MAX_PREEMPTIONS for request in scheduler.live())
        if len(scheduler.waiting):
            assert scheduler.waiting.next(1) == [scheduler.waiting.first()]

    @invariant()
    def within_budget(self) -> None:
        config = self.rig.config.scheduler
        for plan in self.rig.ledger.plans:
            total = sum(work.count for work in plan.work)
            assert plan.work and total
            whole = not config.chunked_prefill and len(plan.work) == 1
            assert total <= config.max_num_batched_tokens or whole
        self.rig.ledger.plans.clear()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.run()
            assert self.rig.core.finished == self.drained
            self.rig.check_answers()


CoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCore = CoreMachine.TestCase
