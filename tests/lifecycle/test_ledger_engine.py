"""The whole engine core on the ledger: whatever techniques are on, every answer is the naive loop's."""

from __future__ import annotations

import itertools

import pytest

from octavo.types import FinishReason
from tests.support.engine import Rig
from tests.support.traffic import drive, fresh_random, random_requests

TECHNIQUES = list(itertools.product(["continuous", "static"], [True, False], [True, False], [True, False]))


@pytest.mark.parametrize("budget", [1, 7, 64])
@pytest.mark.parametrize(("policy", "chunked", "prefix_cache", "paged"), TECHNIQUES)
def test_every_combination_of_techniques_gives_the_naive_loops_answers(
    policy: str, chunked: bool, prefix_cache: bool, paged: bool, budget: int
) -> None:
    rng = fresh_random()
    for _ in range(3):
        rig = Rig(
            pool_tokens=rng.choice([192, 256, 384, 640]),
            max_model_len=192,
            paged=paged,
            prefix_cache=prefix_cache,
            policy=policy,
            chunked_prefill=chunked,
            max_num_batched_tokens=budget,
            max_num_seqs=rng.choice([2, 5, 16]),
        )
        drive(rig, rng, random_requests(rng, 10))
        rig.check_answers()


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(("groups", "windows"), [(1, ()), (2, ()), (1, (8,)), (0, (50,)), (1, (1, 33))])
def test_steps_in_flight_and_groups_change_nothing(depth: int, groups: int, windows: tuple[int, ...]) -> None:
    rng = fresh_random()
    for _ in range(8):
        rig = Rig(
            pool_tokens=rng.choice([160, 224, 320]),
            max_model_len=160,
            depth=depth,
            groups=groups,
            windows=windows,
            max_num_batched_tokens=rng.choice([16, 64, 256]),
            max_num_seqs=rng.choice([3, 8]),
        )
        drive(rig, rng, random_requests(rng, 12))
        rig.check_answers()


def test_tiny_pools_preempt_and_still_give_the_naive_loops_answers() -> None:
    rng = fresh_random()
    preemptions = 0
    for _ in range(15):
        rig = Rig(pool_tokens=rng.choice([192, 224, 256]), max_model_len=192, max_num_seqs=8, depth=rng.choice([1, 2]))
        drive(rig, rng, random_requests(rng, 12), aborts=0.005)
        rig.check_answers()
        preemptions += rig.stats.preemptions
    assert preemptions > 15


def test_window_groups_serve_long_texts_from_small_pools() -> None:
    """A pool of window blocks for one request's window and steps holds any text; hits, pressure and aborts included."""
    rng = fresh_random()
    hits = 0
    for _ in range(12):
        rig = Rig(
            pool_tokens=rng.choice([512, 1024]),
            max_model_len=480,
            windows=(rng.choice([1, 8, 31, 32, 33, 100]),),
            max_num_seqs=rng.choice([1, 2, 6]),
            max_num_batched_tokens=rng.choice([8, 32, 100]),
            depth=rng.choice([1, 2]),
        )
        drive(rig, rng, random_requests(rng, 14), aborts=0.01)
        rig.check_answers()
        hits += rig.stats.cached_prompt_tokens
    assert hits


def test_a_request_that_fails_harms_no_other() -> None:
    rng = fresh_random()
    for _ in range(10):
        rig = Rig(pool_tokens=320, max_model_len=192, max_num_seqs=6, max_num_batched_tokens=32)
        rig.ledger.failing = {1, 4}
        drive(rig, rng, random_requests(rng, 9), aborts=0)
        for request_id in (1, 4):
            final = rig.finals[request_id]
            resumed = bool(rig.requests[request_id].generated)
            assert final.finish is FinishReason.ERROR or (resumed and not rig.tokens[request_id])
        assert all(rig.finals[i].finish is not FinishReason.ERROR for i in (0, 2, 3, 5, 6, 7, 8))
        rig.check_answers()


def test_counters_tell_what_was_computed() -> None:
    rng = fresh_random()
    rig = Rig(pool_tokens=640, max_model_len=192, max_num_batched_tokens=64)
    drive(rig, rng, random_requests(rng, 12), aborts=0)
    prompts = sum(
        len(request.prompt)
        for request in rig.requests.values()
        if rig.tokens[request.request_id] and not request.generated  # what an engine before computed is no new prompt
    )
    assert rig.stats.prompt_tokens + rig.stats.cached_prompt_tokens == prompts
    assert rig.stats.generated_tokens == sum(len(tokens) for tokens in rig.tokens.values())
    assert rig.stats.steps == len(rig.ledger.plans)
    assert rig.stats.kv_blocks_free == rig.stats.kv_blocks_total
