"""Kinds of fault seen in other engines, as small cases on the ledger: F1, F2, F4, G1 to G5, H2 and N3."""

from __future__ import annotations

import pytest

from octavo.types import Abort, FinishReason
from tests.support.engine import Rig
from tests.support.ledger import make_request
from tests.support.traffic import fresh_random, random_tokens


def test_f2_prefixes_are_shared_only_under_the_same_salt_and_tenant() -> None:
    rig = Rig(pool_tokens=512)
    prompt = random_tokens(fresh_random(), 64)
    owners = [("a", ""), ("a", ""), ("b", ""), ("", ""), ("", ""), ("", "a"), ("", "a"), ("a", "a")]
    for request_id, (salt, tenant) in enumerate(owners):
        rig.send(make_request(request_id, prompt, 3, cache_salt=salt, tenant=tenant))
        rig.run()
    assert [rig.cached[i] for i in range(len(owners))] == [0, 63, 0, 0, 63, 0, 63, 0]
    rig.check_answers()


def test_f1_adapters_do_not_share_pages() -> None:
    rig = Rig(pool_tokens=512)
    prompt = random_tokens(fresh_random(), 64)
    for request_id, adapter in enumerate(["", "one", "two", "one", ""]):
        rig.send(make_request(request_id, prompt, 3, adapter=adapter))
        rig.run()
    assert [rig.cached[i] for i in range(5)] == [0, 0, 0, 63, 63]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96])
def test_f4_the_same_request_again_gives_the_same_answer(length: int) -> None:
    rig = Rig(pool_tokens=512)
    prompt = random_tokens(fresh_random(), length)
    for request_id in range(3):
        rig.send(make_request(request_id, prompt, 40, seed=3, logprobs=0, ignore_eos=True))
        rig.run()
    assert rig.tokens[0] == rig.tokens[1] == rig.tokens[2]
    assert rig.cached[0] == 0
    assert rig.cached[1] == rig.cached[2] == min(length // 32 * 32, length - 1)
    first_work = [plan.work[0] for plan in rig.ledger.plans if plan.new]
    assert all(work.count >= 1 for work in first_work), "a cached prompt still computes its last position"
    if length % 32 == 0:
        assert (first_work[1].start, first_work[1].count, first_work[1].store_from) == (length - 1, 1, length)
    rig.check_answers()


def test_g1_a_prompt_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    rng = fresh_random()
    rig = Rig(pool_tokens=512, max_model_len=8192)
    rig.send(
        make_request(1, random_tokens(rng, 600), 10),
        make_request(2, random_tokens(rng, 10), 10),
        make_request(3, random_tokens(rng, 400), 400, ignore_eos=True),
    )
    rig.step()
    refused = rig.finals[1]
    assert refused.finish is FinishReason.ERROR
    assert refused.error is not None and "600" in refused.error and "512" in refused.error
    rig.run()
    assert rig.finals[3].finish is FinishReason.LENGTH
    assert len(rig.tokens[3]) == 112, "the answer ends where the pool ends"
    rig.check_answers()


def test_g1_the_context_is_named_where_it_is_what_ends() -> None:
    rig = Rig(pool_tokens=2048, max_model_len=256)
    rig.send(make_request(1, [5] * 256, 10), make_request(2, [5] * 255, 10, ignore_eos=True))
    rig.run()
    error = rig.finals[1].error
    assert error is not None and "256" in error and "--max-model-len" in error
    assert (rig.finals[2].finish, len(rig.tokens[2])) == (FinishReason.LENGTH, 1)


def test_g2_preempted_requests_go_on_where_they_stopped() -> None:
    rng = fresh_random()
    rig = Rig(pool_tokens=320, max_num_batched_tokens=512)
    rig.send(*[make_request(i, random_tokens(rng, 40), 80, ignore_eos=True) for i in range(6)])
    rig.run()
    assert rig.stats.preemptions > 0
    assert rig.stats.recomputed_tokens > 0
    assert all(len(rig.tokens[i]) == 80 for i in range(6))
    assert all(rig.cached[i] == 0 for i in range(6)), "recomputation is no hit"
    assert rig.stats.cached_prompt_tokens == 0 and rig.stats.prefix_queries == 6 * 40
    assert rig.stats.recomputed_tokens + rig.stats.resumed_tokens > 0
    rig.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_g3_a_prompt_in_chunks_draws_nothing_before_its_last_one(depth: int) -> None:
    rng = fresh_random()
    prompt = random_tokens(rng, 50)
    whole, chunked = (
        Rig(pool_tokens=512, depth=depth, max_num_batched_tokens=budget, prefix_cache=False) for budget in (64, 8)
    )
    for rig in (whole, chunked):
        rig.send(make_request(1, prompt, 5, seed=3, logprobs=0, ignore_eos=True))
        rig.run()
        rig.check_answers()
    assert chunked.tokens == whole.tokens
    drew = [work.sample for plan in chunked.ledger.plans for work in plan.work]
    assert drew == [False] * 6 + [True] * 5
    assert chunked.first_token_step[1] - whole.first_token_step[1] == 6


@pytest.mark.parametrize("longs", [1, 3])
def test_g4_short_prompts_pass_a_long_one_which_still_finishes(longs: int) -> None:
    rng = fresh_random()
    rig = Rig(pool_tokens=16384, max_model_len=8192, max_num_batched_tokens=64)
    for number in range(longs):
        rig.send(make_request(1000 + number, random_tokens(rng, 3000), 4, ignore_eos=True))
    rig.step()
    sent: dict[int, int] = {}
    while not all(1000 + number in rig.finals for number in range(longs)):
        if rig.steps % 5 == 0:
            request_id = len(sent)
            sent[request_id] = rig.steps
            rig.send(make_request(request_id, random_tokens(rng, 10), 20, ignore_eos=True))
        rig.step()
        assert rig.steps < 80 * longs, "steady short requests starve the long ones"
    rig.run()
    late = {i: rig.first_token_step[i] - at for i, at in sent.items() if rig.first_token_step[i] - at > 4}
    assert not late, f"short requests waited more than 4 steps: {late}"
    rig.check_answers()


@pytest.mark.parametrize(("prompt", "answer"), [(160, 160), (32, 400), (300, 100)])
def test_g5_two_long_requests_do_not_push_each_other_out(prompt: int, answer: int) -> None:
    rng = fresh_random()
    prompts = [random_tokens(rng, prompt) for _ in range(2)]
    need = -(-(prompt + answer - 1) // 32)

    def rig() -> Rig:
        return Rig(pool_tokens=(2 * need - 1) * 32, max_model_len=1024, max_num_batched_tokens=32, prefix_cache=False)

    serial = 0
    for tokens in prompts:
        alone = rig()
        alone.send(make_request(0, tokens, answer, ignore_eos=True))
        alone.run()
        serial += alone.steps
    both = rig()
    both.send(*[make_request(i, tokens, answer, ignore_eos=True) for i, tokens in enumerate(prompts)])
    both.run()
    both.check_answers()
    assert 1 <= both.stats.preemptions <= 2
    assert both.steps < 1.5 * serial


def test_g5_nobody_is_preempted_more_than_twice() -> None:
    rng = fresh_random()
    for _ in range(3):
        rig = Rig(pool_tokens=352, max_model_len=320, max_num_batched_tokens=rng.choice([16, 32, 64]), max_num_seqs=8)
        requests = [make_request(i, random_tokens(rng, rng.randrange(1, 100)), 200, ignore_eos=True) for i in range(8)]
        rig.send(*requests)
        most: dict[int, int] = {}
        while rig.core.has_work:
            for request in rig.core.scheduler.live():
                most[request.request.request_id] = request.preemptions
            rig.step()
        assert max(most.values()) in (1, 2)
        rig.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_h2_aborting_waiting_requests_leaks_nothing(depth: int) -> None:
    rng = fresh_random()
    rig = Rig(pool_tokens=512, max_num_seqs=1, depth=depth)
    prefix = random_tokens(rng, 64)
    rig.send(make_request(0, prefix, 2, ignore_eos=True))
    rig.run()
    rig.send(make_request(1, random_tokens(rng, 20), 100, ignore_eos=True))
    rig.step()
    waiting = list(range(2, 7))
    rig.send(*[make_request(i, [*prefix, i], 20) for i in waiting])
    rig.step()
    used = sum(group.pool.used for group in rig.core.kv.groups)
    rig.send(Abort(waiting), Abort(waiting[:2]), Abort([999]))
    rig.step()
    assert sum(group.pool.used for group in rig.core.kv.groups) == used
    assert all(rig.finals[i].finish is FinishReason.ABORT for i in waiting)
    rig.run()
    rig.check_answers()


def test_n3_counters_never_fall_though_a_preempted_request_finds_more_than_it_had() -> None:
    rng = fresh_random()
    rig = Rig(pool_tokens=320, max_num_batched_tokens=512)
    prefix = random_tokens(rng, 64)
    rig.send(*[make_request(i, [*prefix, i], 80, ignore_eos=True) for i in range(6)])
    rig.run()  # which looks at every counter after every step
    assert rig.stats.preemptions > 0 and rig.stats.resumed_tokens > 0
    rig.check_answers()
