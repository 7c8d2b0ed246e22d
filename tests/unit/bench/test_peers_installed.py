"""Other engines themselves, where `octavo bench peers --setup` has run and the model's forms are made; else skipped.

vLLM takes minutes to start and is left to the command.
"""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest

from octavo.bench.peers.contender import Work, offline, rates, room_for
from octavo.bench.peers.environments import Environment, find
from octavo.bench.peers.forms import FORMS, forms_folder
from octavo.bench.peers.guard import Guard, session_pids
from octavo.bench.peers.worker import Worker
from octavo.models.store import cached_default_model

WORKS = (Work("decode-2", 2, 16, 4, "decode"), Work("prefill-32", 1, 32, 1, "prefill"))


def installed(peer: str) -> tuple[Environment, Path, str]:
    """The environment, and the first form that is made."""
    environment, source = find(peer), cached_default_model()
    if environment is None or source is None:
        pytest.skip(f"{peer} is not set up")
    for form in FORMS[peer]:
        path = forms_folder(source) / form.path if form.path else source
        if path.exists():
            return environment, path, form.name
    pytest.skip(f"no form of the default model is made for {peer}")


@pytest.mark.parametrize("peer", ["openvino", "llamacpp"])
def test_an_installed_engine_answers_with_as_many_tokens_as_asked_and_tells_their_times(
    peer: str, tmp_path: Path
) -> None:
    environment, path, form = installed(peer)
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Guard() as guard:
        worker = Worker(offline(peer, form, path, environment, room_for(WORKS, 1)), guard, tmp_path / "log")
        try:
            worker.start()
            facts = worker.wait_ready(120)
            assert facts["version"] and facts["kv"]
            for work in WORKS:
                prompts = [[rng.randrange(100, 40000) for _ in range(work.prompt)] for _ in range(work.streams)]
                timing = worker.run(prompts, work.output, 120)
                prefill, decode, _ = rates(work, timing, None)
                assert prefill > 0 and (decode > 0) == (work.output > 1)
                assert timing.late == work.streams * (work.output - 1)
            worker.pause()
            assert set(session_pids(worker.session).values()) <= {"T", "t"}
        finally:
            worker.kill()
