"""Refusals say what is wrong and what would work; preemption picks the right victim."""

from __future__ import annotations

from dataclasses import replace

from octavo.kvcache.group import Group
from octavo.kvcache.keys import KeyContext
from octavo.kvcache.manager import KVManager
from octavo.scheduler.admission import Limits, refusal, reserved_growth
from octavo.scheduler.preemption import choose_victim
from octavo.scheduler.state import RequestState
from octavo.types import ErrorCode, NewRequest
from tests.support.ledger import make_request

LIMITS = Limits(max_model_len=512, pool_tokens=1024, max_context=2048, vocab_size=100, max_waiting=2)


def _manager(blocks: int = 32) -> KVManager:
    return KVManager([Group(blocks, True)], 32, KeyContext("w", "n", 32))


def _error(request: NewRequest, limits: Limits = LIMITS, waiting: int = 0) -> str:
    refused = refusal(request, limits, waiting)
    assert refused is not None
    return refused.error


def _running(kv: KVManager, arrival: int, prompt: int, max_tokens: int = 1000, priority: int = 0) -> RequestState:
    message = make_request(arrival, [5] * prompt, max_tokens, priority=priority)
    request = RequestState(message, arrival, 1024, (2,), kv.sequence())
    assert kv.reserve(request.kv, request.tokens, prompt)
    request.admit()
    return request


def test_requests_that_fit_are_not_refused() -> None:
    assert refusal(make_request(1, [5] * 511, 10_000), LIMITS, 0) is None


def test_refusals_name_both_numbers_and_a_value_that_works() -> None:
    by_length = _error(make_request(1, [5] * 600, 10))
    assert by_length == (
        "The prompt has 600 tokens and --max-model-len is 512, answer included; "
        "shorten the prompt to 511 tokens or start with --max-model-len 608."
    )
    pool = Limits(max_model_len=512, pool_tokens=256, max_context=2048, vocab_size=100, max_waiting=2)
    by_pool = _error(make_request(1, [5] * 300, 10), pool)
    assert "300" in by_pool and "256" in by_pool and "--kv-tokens 320" in by_pool
    whole = Limits(max_model_len=2048, pool_tokens=4096, max_context=2048, vocab_size=100, max_waiting=2)
    by_context = _error(make_request(1, [5] * 3000, 10), whole)
    assert "2048" in by_context and "--" not in by_context


def test_other_refusals() -> None:
    cases = {
        "empty": make_request(1, [], 10),
        "-1": make_request(1, [5, -1], 10),
        "100": make_request(1, [5, 100], 10),
        "max_tokens": make_request(1, [5], 0),
    }
    for word, request in cases.items():
        assert word in _error(request)
    full = refusal(make_request(1, [5], 10), LIMITS, 2)
    assert full is not None and "--max-queue-requests" in full.error and full.code is ErrorCode.QUEUE_FULL
    unordered = replace(LIMITS, priorities=False)
    assert "--scheduling-policy" in _error(make_request(1, [5], 10, priority=1), unordered)
    assert refusal(make_request(1, [5], 10), unordered, 0) is None


def test_a_preempted_request_asks_for_more_room_each_time() -> None:
    kv = _manager()
    other = _running(kv, 0, 32)
    request = _running(kv, 1, 32)
    needs = []
    for preemptions in range(3):
        request.preemptions = preemptions
        growth = reserved_growth(request, [other])
        needs.append([kv.blocks_for(tokens) - seq.num_blocks for seq, tokens in growth.items()])
    assert needs == [[], [4, 4], [31, 31]]
    assert reserved_growth(request, []) == {}


def test_the_victim_is_of_the_lowest_priority_then_the_youngest() -> None:
    kv = _manager()
    requests = [_running(kv, 0, 8), _running(kv, 1, 8, priority=1), _running(kv, 2, 8)]
    assert choose_victim(requests[0], requests) is requests[1]
    assert choose_victim(requests[0], [requests[0], requests[2]]) is requests[2]
    assert choose_victim(requests[2], [requests[0], requests[2]]) is requests[2]


def test_nobody_is_preempted_again_before_it_has_generated_something() -> None:
    kv = _manager()
    old, young = _running(kv, 0, 8), _running(kv, 1, 8)
    young.preemptions = 1
    assert choose_victim(old, [old, young]) is None
    young.tokens.append(7)
    assert choose_victim(old, [old, young]) is young
    young.preemptions = 2
    assert choose_victim(old, [old, young]) is old
