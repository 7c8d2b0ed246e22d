"""Pooled requests in the scheduler: one vector each, of every position, whatever happens on the way."""

from __future__ import annotations

import pytest

from octavo.types import ErrorCode, FinishReason, NewRequest, Pooling
from tests.support.engine import Rig
from tests.support.ledger import make_request, naive_vector


def _pooled(request_id: int, prompt: list[int], pooling: Pooling = Pooling.MEAN, **fields: object) -> NewRequest:
    return make_request(request_id, prompt, 1, pooling=pooling, **fields)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_prompt_in_chunks_beside_others_gives_one_vector_and_no_token(pooling: Pooling) -> None:
    rig = Rig(pool_tokens=512, max_num_batched_tokens=16)
    rig.send(_pooled(1, [5] * 100, pooling), make_request(2, [6] * 40, 20), _pooled(3, [7], pooling))
    rig.run()
    rig.check_answers()
    final = rig.finals[1]
    assert (final.finish, final.tokens, final.cached_tokens) == (FinishReason.LENGTH, [], 0)
    assert final.vector == naive_vector(rig.requests[1])


def test_a_mean_takes_no_hits_and_others_hit_what_it_computed() -> None:
    rig = Rig(pool_tokens=512)
    for request_id in (1, 2):
        rig.send(_pooled(request_id, [5] * 100))
        rig.run()
    rig.send(make_request(3, [5] * 100, 4), _pooled(4, [5] * 100, Pooling.LAST))
    rig.run()
    rig.check_answers()
    assert [rig.finals[i].cached_tokens for i in (1, 2, 4)] == [0, 0, 96]
    assert rig.cached[3] == 96


def test_a_preempted_mean_begins_anew() -> None:
    rig = Rig(pool_tokens=256, max_num_batched_tokens=8, order="priority")
    rig.send(_pooled(1, [5] * 200, priority=1))
    for _ in range(20):
        rig.step()
    rig.send(make_request(2, [6] * 100, 50, priority=-1, ignore_eos=True))
    rig.run()
    rig.check_answers()
    assert rig.stats.preemptions == 1 and rig.stats.recomputed_tokens >= 150


def test_a_prompt_may_fill_the_context_and_no_more() -> None:
    rig = Rig(pool_tokens=512, max_model_len=128)
    rig.send(_pooled(1, [5] * 128), _pooled(2, [5] * 129))
    rig.run()
    assert rig.finals[1].vector == naive_vector(rig.requests[1])
    refused = rig.finals[2]
    assert refused.code is ErrorCode.NEVER_FITS and refused.error is not None
    assert "129 tokens" in refused.error and "answer" not in refused.error
