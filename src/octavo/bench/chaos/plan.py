"""What a seed stands for: the requests, and the faults of each life of the engine.

Owns nothing; the same seed and sizes give the same plan on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

FAULTS = ("kill", "segv", "abort", "error", "memory", "stuck", "cut")
"""Kinds that are drawn unless some are named; see engine/faults.py."""
POISON = (11, 13, 17, 19, 23)
"""Tokens that no drawn prompt holds in a row: the mark of the request that kills engines."""
_LOWEST_ID = 30
"""Ids below are left to control tokens and to the mark."""


@dataclass(frozen=True)
class Sizes:
    """How much work, in tokens; both bounds included."""

    requests: int = 64
    streams: int = 32
    prompt: tuple[int, int] = (50, 500)
    output: tuple[int, int] = (200, 600)


@dataclass(frozen=True)
class Plan:
    """Bodies in the order in which clients take them, and the faults."""

    seed: int
    sizes: Sizes
    bodies: tuple[dict[str, Any], ...]
    faults: tuple[str, ...] = ()
    """In the grammar of engine/faults.py."""
    poison: int | None = None
    """Index of the body that kills engines."""
    kinds: tuple[str, ...] = field(default=())


def make_plan(
    seed: int,
    sizes: Sizes,
    vocabulary: int,
    faults: int = 0,
    every: int = 100,
    kinds: tuple[str, ...] = FAULTS,
    poison: str | None = None,
) -> Plan:
    """faults: how many, each about `every` steps after the engine's start. poison: kind of the poisoned request."""
    rng = Random(seed)
    bodies = _bodies(rng, sizes, vocabulary)
    planned = []
    for life in range(faults):
        kind = rng.choice(kinds)
        at = rng.randint(max(1, every // 2), every + every // 2)
        where = f"message={at}" if kind == "cut" else f"step={at}"
        planned.append(f"{kind}@life={life},{where}")
    index = None
    if poison is not None:
        index = len(bodies) // 2
        prompt = [*bodies[index]["prompt"][: sizes.prompt[0]], *POISON]
        bodies[index] = {"prompt": prompt, "max_tokens": 16, "temperature": 0.0}
        planned.append(f"{poison}@marker={'.'.join(map(str, POISON))}")
    return Plan(seed, sizes, tuple(bodies), tuple(planned), index, kinds)


def _bodies(rng: Random, sizes: Sizes, vocabulary: int) -> list[dict[str, Any]]:
    def ids(count: int) -> list[int]:
        return [rng.randrange(_LOWEST_ID, vocabulary) for _ in range(count)]

    shared = [ids(sizes.prompt[1]) for _ in range(3)]
    bodies = []
    for index in range(sizes.requests):
        length = rng.randint(*sizes.prompt)
        head = rng.choice(shared)[: length // 2] if rng.random() < 0.5 else []
        body: dict[str, Any] = {
            "prompt": head + ids(length - len(head)),
            "max_tokens": rng.randint(*sizes.output),
            "temperature": rng.choice([0.0, 0.7, 1.0, 1.3]),
            "seed": rng.randrange(1 << 31),
            "ignore_eos": rng.random() < 0.8,
        }
        if index % 3 == 0:
            body["logprobs"] = rng.choice([0, 1, 3])
        if index % 5 == 0:
            body["n"] = rng.choice([2, 3])
        if index % 4 == 1:
            body |= {"top_p": 0.9, "frequency_penalty": 0.4}
        if index % 7 == 3:
            body["stop"] = [rng.choice([".", " the", "\n", "e s"])]
        bodies.append(body)
    return bodies
