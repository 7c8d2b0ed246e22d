"""Random traffic over a pool that is too small, with a tier on disk: every answer is that of a machine to itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.engine import Rig
from tests.support.ledger import make_request
from tests.support.traffic import drive, fresh_random, random_requests, random_tokens

ALWAYS_READ = {"max_num_batched_tokens": 60}
"""Steps that are too small to say how fast prompts are computed, so that all that is on disk is read."""


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_whatever_comes_from_disk_answers_stay_the_same(tmp_path: Path, depth: int, groups: int) -> None:
    rng = fresh_random()
    hits = 0
    for life in range(2):
        pool = rng.choice([320, 512])
        rig = Rig(pool, max_model_len=320, depth=depth, groups=groups, disk=tmp_path / "kv", **ALWAYS_READ)
        requests = random_requests(rng, 20)
        drive(rig, rng, requests, aborts=0.05)
        rig.check_answers()
        # The same again: what was evicted meanwhile may come from disk.
        again = [
            make_request(
                100 + request.request_id,
                request.prompt,
                20,
                seed=life,
                cache_salt=request.cache_salt,
                tenant=request.tenant,
            )
            for request in requests
        ]
        for request in again:
            rig.send(request)
            rig.run()
        rig.check_answers()
        hits += rig.stats.disk_hits
        rig.core.close()
    assert hits > 0


def test_files_that_vanish_or_are_damaged_meanwhile_are_computed(tmp_path: Path) -> None:
    rng = fresh_random()
    prompts = [random_tokens(rng, rng.randrange(100, 200)) for _ in range(8)]
    for life in range(4):
        rig = Rig(pool_tokens=256, max_model_len=256, disk=tmp_path / "kv", **ALWAYS_READ)
        for number, prompt in enumerate(prompts):
            rig.send(make_request(number, prompt, 4, seed=number))
            rig.run()
        rig.check_answers()
        rig.core.close()
        for path in (tmp_path / "kv").glob("*.kv"):
            kind = rng.randrange(8)
            if kind == 0:
                path.unlink()
            elif kind == 1:
                os.truncate(path, rng.randrange(path.stat().st_size))
            elif kind == 2:
                content = bytearray(path.read_bytes())
                content[rng.randrange(len(content))] ^= 1
                path.write_bytes(content)
        assert life == 0 or rig.stats.disk_hits > 0


def test_a_request_alone_fits_the_pool_though_loads_were_left_behind(tmp_path: Path) -> None:
    rng = fresh_random()
    prompt = random_tokens(rng, 200)
    first = Rig(pool_tokens=256, max_model_len=256, disk=tmp_path / "kv", **ALWAYS_READ)
    first.send(make_request(0, prompt, 1))
    first.run()
    first.core.close()
    rig = Rig(pool_tokens=256, max_model_len=256, disk=tmp_path / "kv", max_num_seqs=4, **ALWAYS_READ)
    for number in range(12):
        rig.send(make_request(number, prompt if number % 2 else random_tokens(rng, 180), 40))
        if rng.random() < 0.5:
            rig.step()
    rig.run()
    rig.check_answers()
    rig.core.close()
