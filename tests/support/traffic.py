"""Random traffic for the engine core: requests that share prefixes, arrivals over time, aborts."""

from __future__ import annotations

import random
import secrets

from octavo.types import Abort, NewRequest
from tests.support.engine import Rig
from tests.support.ledger import VOCAB, make_request


def fresh_random() -> random.Random:
    """A generator with a new seed, printed so that a failure can be run again."""
    seed = secrets.randbits(48)
    print(f"seed {seed}")
    return random.Random(seed)


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(count)]


def random_requests(rng: random.Random, count: int, longest: int = 120) -> list[NewRequest]:
    """Prompts that begin alike, at block edges and elsewhere; outputs that end in every way."""
    bases = [random_tokens(rng, longest) for _ in range(2)]
    requests = []
    for request_id in range(count):
        shared = rng.choice(bases)[: min(longest, rng.choice([0, 31, 32, 33, 64, 96, rng.randrange(longest)]))]
        prompt = shared + random_tokens(rng, rng.choice([0, 1, 5, 31])) or [5]
        requests.append(
            make_request(
                request_id,
                prompt,
                rng.choice([1, 2, 20, 80, 150]),
                seed=rng.randrange(3),
                priority=rng.choice([0, 0, 0, 1]),
                ignore_eos=rng.random() < 0.6,
                min_tokens=rng.choice([0, 0, 1]),
                stop_token_ids=tuple(random_tokens(rng, rng.choice([0, 0, 3]))),
                cache_salt=rng.choice(["", "", "salt"]),
                tenant=rng.choice(["", "", "", "other"]),
                logprobs=rng.choice([None, 0]),
                generated=random_tokens(rng, rng.choice([0, 0, 0, 0, 1, 2])),
            )
        )
    return requests


def drive(rig: Rig, rng: random.Random, requests: list[NewRequest], aborts: float = 0.02) -> None:
    """Sends the requests at random times, aborts some, and runs until everybody has an answer."""
    todo = list(requests)
    pace = rng.choice([0.05, 0.3, 1.0])
    while todo or rig.core.has_work:
        while todo and rng.random() < pace:
            rig.send(todo.pop(0))
        if rng.random() < aborts:
            rig.send(Abort([rng.randrange(len(requests) + 2) for _ in range(rng.randrange(1, 3))]))
        rig.step()
        assert rig.steps < 50_000, "the engine does not come to an end"
