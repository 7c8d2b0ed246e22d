"""Block keys: equal where everything is equal, different where anything differs (cases F1, F2, F3)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kvcache import keys, prefix_cache
from octavo.kvcache.keys import KeyChain, KeyContext, block_key, pack_tokens, root_key
from octavo.types import FinishReason
from tests.support.engine import Rig
from tests.support.traffic import drive, fresh_random, random_requests

BASE = KeyContext(weights_id="w", numerics_id="n", block_size=32)
TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=16, max_size=16)


def _key(tokens: list[int], parent: bytes = b"p" * 32) -> bytes:
    return block_key(parent, pack_tokens(tokens))


@pytest.mark.parametrize("field", ["weights_id", "numerics_id", "adapter", "tenant", "salt"])
def test_every_part_of_the_context_changes_the_key(field: str) -> None:
    assert root_key(replace(BASE, **{field: "other"})) != root_key(BASE)


def test_the_block_size_changes_the_key() -> None:
    assert root_key(replace(BASE, block_size=64)) != root_key(BASE)


def test_f2_parts_do_not_run_into_one_another() -> None:
    contexts = [
        replace(BASE, tenant="org1", salt="2345"),
        replace(BASE, tenant="org12345", salt=""),
        replace(BASE, tenant="", salt="org12345"),
        replace(BASE, adapter="org1", salt="2345"),
        replace(BASE, adapter="org1", tenant="2345"),
        replace(BASE, salt="adapter"),
        replace(BASE, adapter="adapter"),
        replace(BASE, tenant="adapter"),
        replace(BASE, weights_id="wn", numerics_id=""),
        replace(BASE, weights_id="", numerics_id="wn"),
    ]
    assert len({root_key(context) for context in contexts}) == len(contexts)


def test_f1_adapters_and_their_versions_have_keys_of_their_own() -> None:
    names = ["", "one", "two", "one@2"]
    assert len({root_key(replace(BASE, adapter=name)) for name in names}) == len(names)


@given(TOKENS, st.integers(0, 14))
def test_f3_blocks_made_to_collide_do_not(tokens: list[int], place: int) -> None:
    shifted = list(tokens)
    shifted[place] += 31
    shifted[place + 1] -= 1 if shifted[place + 1] else 0
    swapped = list(tokens)
    swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
    variants = {tuple(tokens), tuple(shifted), tuple(swapped), (0, *tokens), (*tokens, 0), tuple(tokens[1:])}
    assert len({_key(list(variant)) for variant in variants}) == len(variants)


@given(TOKENS, TOKENS)
def test_a_block_is_keyed_by_everything_before_it(first: list[int], second: list[int]) -> None:
    context = replace(BASE, block_size=16)
    chain = KeyChain(context)
    tokens = first + second
    key = chain.key(1, tokens)
    assert key == _key(second, _key(first, root_key(context)))
    if first != second:
        assert KeyChain(context).key(1, second + first) != key
        assert KeyChain(context).key(0, second) != key


def test_the_chain_refuses_a_block_that_is_not_full() -> None:
    with pytest.raises(AssertionError, match="not full"):
        KeyChain(BASE).key(1, [5] * 63)


def test_f3_a_weak_hash_costs_hits_but_never_a_wrong_page(monkeypatch: pytest.MonkeyPatch) -> None:
    strong = keys._digest

    def weak(data: bytes) -> bytes:
        return strong(data)[:1]

    monkeypatch.setattr(keys, "_digest", weak)
    assert prefix_cache.block_key(b"", b"x") == weak(keys._frame(b"parent", b"") + keys._frame(b"tokens", b"x"))
    rng = fresh_random()
    rig = Rig(pool_tokens=2048, max_model_len=192, max_num_seqs=8, max_num_batched_tokens=256)
    drive(rig, rng, random_requests(rng, 300), aborts=0)
    assert all(final.finish is not FinishReason.ERROR for final in rig.finals.values())
    rig.check_answers()
