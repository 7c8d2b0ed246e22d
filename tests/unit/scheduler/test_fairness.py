"""Tenants get equal shares of what the machine does, by what it costs; nobody saves up, nobody is locked out."""

from __future__ import annotations

import pytest

from octavo.config import SchedulerConfig
from octavo.scheduler.waiting import MAX_TENANTS, FairShare, InOrder, make_waiting
from tests.support.engine import Rig
from tests.support.ledger import make_request
from tests.support.traffic import fresh_random, random_tokens
from tests.unit.scheduler.test_scheduler import Bench


def test_fairness_can_be_off() -> None:
    assert isinstance(make_waiting(SchedulerConfig()), FairShare)
    assert type(make_waiting(SchedulerConfig(tenant_fairness=False))) is InOrder


def _served(fair: bool, tokens: tuple[int, int], prompts: tuple[int, int], backlog: tuple[int, int]) -> list[float]:
    """Each of two tenants' part of the work done, while both always have somebody waiting."""
    rng = fresh_random()
    rig = Rig(pool_tokens=4096, max_num_seqs=4, max_num_batched_tokens=64, tenant_fairness=fair)
    sent: list[set[int]] = [set(), set()]
    while rig.steps < 1200:
        waiting = [request.request.tenant for request in rig.core.scheduler.waiting]
        for tenant in range(2):
            for _ in range(backlog[tenant] - waiting.count(str(tenant))):
                request_id = len(sent[0]) + len(sent[1])
                sent[tenant].add(request_id)
                prompt = random_tokens(rng, prompts[tenant])
                rig.send(make_request(request_id, prompt, tokens[tenant], tenant=str(tenant), ignore_eos=True))
        rig.step()
    work = []
    for tenant in range(2):
        started = [i for i in sent[tenant] if rig.tokens[i]]
        work.append(sum(prompts[tenant] + 2.0 * len(rig.tokens[i]) for i in started))
    return [part / sum(work) for part in work]


@pytest.mark.parametrize(
    ("tokens", "prompts", "backlog"),
    [((20, 20), (30, 30), (20, 2)), ((10, 60), (20, 20), (4, 4)), ((20, 20), (120, 10), (3, 3))],
)
def test_two_backlogged_tenants_get_half_each(
    tokens: tuple[int, int], prompts: tuple[int, int], backlog: tuple[int, int]
) -> None:
    shares = _served(True, tokens, prompts, backlog)
    print(shares)
    assert abs(shares[0] - 0.5) < 0.05


def test_without_fairness_the_one_that_sends_more_gets_more() -> None:
    assert _served(False, (20, 20), (30, 30), (20, 2))[0] > 0.8


def test_a_tenant_that_comes_anew_is_served_at_once_but_owed_nothing() -> None:
    bench = Bench(max_num_seqs=1)
    for number in range(40):
        bench.add(number, 20, 2, tenant="busy", ignore_eos=True)
    while sum(request.request.tenant == "busy" for request in bench.scheduler.waiting) > 25:
        bench.step()
    late = [bench.add(100 + number, 20, 2, tenant="new", ignore_eos=True) for number in range(10)]
    order = [request.request.tenant for request in bench.scheduler.waiting.next(6)]
    assert order in (["busy", "new"] * 3, ["new", "busy"] * 3)
    assert late[0].request.tenant == "new"


def test_one_tenant_is_served_in_order_of_age() -> None:
    queue = FairShare(2.0)
    bench = Bench(max_num_seqs=1)
    requests = [bench.add(number, 5 + number, tenant="a") for number in range(5)]
    for request in requests:
        queue.add(request)
        queue.charge(request, 7, 3)
    assert queue.next(3) == requests[:3] and queue.first() is requests[0]
    assert queue.tokens == sum(len(request.tokens) for request in requests)


def test_counters_of_tenants_that_left_are_bounded() -> None:
    queue = FairShare(2.0)
    bench = Bench(max_num_seqs=1)
    for number in range(3 * MAX_TENANTS):
        request = bench.add(number, 1, tenant=f"t{number}")
        queue.add(request)
        queue.charge(request, 1 + number % 5, 0)
        queue.remove(request)
    assert len(queue._counters) <= MAX_TENANTS + 1
