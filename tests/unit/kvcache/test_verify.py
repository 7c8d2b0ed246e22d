"""The mode that verifies every hit: forged entries are refused aloud, and honest use is the same as without it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from octavo.kvcache.keys import pack_tokens
from octavo.kvcache.prefix_cache import Entry, KeyedPrefixCache
from octavo.kvcache.verify import VerifyingCache
from octavo.types import FinishReason
from tests.support.engine import Rig
from tests.support.ledger import make_request
from tests.support.traffic import drive, fresh_random, random_requests, random_tokens


def _entries(rig: Rig) -> list[Entry]:
    cache = rig.core.kv.groups[0].cache
    assert isinstance(cache, VerifyingCache) and isinstance(cache._inner, KeyedPrefixCache)
    return sorted(cache._inner._entries.values(), key=lambda entry: entry.index)


def _swap(entries: list[Entry]) -> None:
    entries[1].block, entries[2].block = entries[2].block, entries[1].block


def _another_key(entries: list[Entry]) -> None:
    """A block of another prompt under this one's key: parent and tokens fit, the page does not."""
    entries[1].block = entries[-1].block


@pytest.mark.parametrize("forge", [_swap, _another_key])
def test_a_forged_entry_is_refused_and_logged(
    forge: Callable[[list[Entry]], None], caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(pool_tokens=512, verify=True)
    prompt = random_tokens(fresh_random(), 100)
    rig.send(make_request(1, prompt, 2, ignore_eos=True))
    rig.run()
    forge(_entries(rig))
    group = rig.core.kv.groups[0]
    with caplog.at_level(logging.ERROR):
        found = group.cache.match(rig.core.kv.sequence().chain, prompt)
    assert len(found) == 1 and group.cache.mismatches == 1
    assert "the hit is refused" in caplog.text
    assert rig.core.stats().refused_hits == 1


def test_tokens_that_were_changed_are_no_hit_either() -> None:
    rig = Rig(pool_tokens=512, verify=True)
    prompt = random_tokens(fresh_random(), 100)
    rig.send(make_request(1, prompt, 2, ignore_eos=True))
    rig.run()
    _entries(rig)[1].packed = pack_tokens([7] * 32)
    assert len(rig.core.kv.groups[0].cache.match(rig.core.kv.sequence().chain, prompt)) == 1


@pytest.mark.parametrize("windows", [(), (40,)])
def test_verified_and_not_verified_engines_find_the_same(windows: tuple[int, ...]) -> None:
    rng = fresh_random()
    seed = rng.randrange(1 << 30)
    hits = []
    for verify in (False, True):
        rng.seed(seed)
        rig = Rig(pool_tokens=1024, max_model_len=192, max_num_seqs=8, windows=windows, verify=verify)
        drive(rig, rng, random_requests(rng, 60), aborts=0)
        assert all(final.finish is not FinishReason.ERROR for final in rig.finals.values())
        rig.check_answers()
        assert rig.core.stats().refused_hits == 0
        hits.append(rig.core.stats().cached_prompt_tokens)
    assert hits[0] == hits[1] > 0
