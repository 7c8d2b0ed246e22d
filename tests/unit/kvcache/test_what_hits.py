"""The two lists of docs/prefix-cache.md: what hits and what cannot."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from octavo.config import KVConfig
from octavo.kvcache.manager import KVManager, make_kv
from tests.support.engine import Rig
from tests.support.ledger import ledger_info, make_request
from tests.support.traffic import fresh_random, random_tokens

A, B, C = ([value] * 32 for value in (11, 12, 13))


def _cached(rig: Rig, prompt: list[int], **fields: object) -> int:
    number = len(rig.requests)
    rig.send(make_request(number, prompt, 3, ignore_eos=True, **fields))
    rig.run()
    rig.check_answers()
    return rig.cached[number]


@pytest.mark.parametrize(
    ("prompt", "hit"),
    [
        ([*A, *B, *C, 5], 96),
        ([*A, *B, *C], 95),
        ([*A, *B, *C[:31]], 64),
        ([*A, *B, 9, *C], 64),
        ([*B, *C, 5], 0),
        ([*C, *A, *B], 0),
        ([9, *A, *B, *C], 0),
        ([*A[:-1], 9, *B, *C], 0),
        ([*A, 5], 32),
    ],
)
def test_whole_blocks_from_the_first_token_on_hit_and_nothing_in_the_middle(prompt: list[int], hit: int) -> None:
    rig = Rig(pool_tokens=1024)
    assert _cached(rig, [*A, *B, *C, 7]) == 0
    assert _cached(rig, prompt) == hit


def test_an_answer_hits_when_it_comes_back_as_part_of_a_prompt() -> None:
    rig = Rig(pool_tokens=1024)
    prompt = random_tokens(fresh_random(), 40)
    rig.send(make_request(0, prompt, 60, ignore_eos=True))
    rig.run()
    assert _cached(rig, [*prompt, *rig.tokens[0], 5]) == 96


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, 64),
        ({"weights_id": "other weights"}, 0),
        ({"numerics_id": "other numerics"}, 0),
    ],
)
def test_other_weights_and_numerics_are_other_keys(changes: dict[str, str], found: int) -> None:
    """One pool is never shared by two models; keys decide for what a disk holds, and this shows it by one pool."""
    info = ledger_info()
    config = KVConfig()
    first = make_kv(config, info, (8,), 512, lead=64)
    second = make_kv(config, msgspec.structs.replace(info, **changes), (8,), 512, lead=64)
    second.groups = first.groups
    seq = first.sequence()
    assert first.reserve(seq, [*A, *B], 64)
    first.advance(seq, 64)
    first.commit(seq, [*A, *B], 64)
    other = second.sequence()
    assert second.reserve(other, [*A, *B, 5], 65)
    assert other.matched == found


def _found(kv: KVManager, **owner: str) -> int:
    seq = kv.sequence(**owner)
    assert kv.reserve(seq, [*A, *B, 5], 65)
    kv.advance(seq, 65)
    kv.commit(seq, [*A, *B, 5], 65)
    matched = seq.matched
    kv.release(seq)
    return matched


@pytest.mark.parametrize("scope", ["tenant", "shared"])
def test_tenants_share_where_the_scope_says_so_and_salts_never_do(scope: str) -> None:
    kv = make_kv(replace(KVConfig(), prefix_scope=scope), ledger_info(), (16,), 512, lead=64)
    assert _found(kv, tenant="a") == 0
    assert _found(kv, tenant="a") == 64
    assert _found(kv, tenant="b") == (64 if scope == "shared" else 0)
    assert _found(kv) == (64 if scope == "shared" else 0)
    assert _found(kv, tenant="a", salt="s") == 0
    assert _found(kv, tenant="a", salt="s") == 64
    assert _found(kv, tenant="b", salt="s") == (64 if scope == "shared" else 0)
