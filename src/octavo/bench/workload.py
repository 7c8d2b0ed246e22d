"""What is asked of an engine in a measurement: prompts of random token ids, and how many tokens each answer has.

Everything follows from a seed, so two arms get the same work. Answers never end early (`ignore_eos`), and a salt of
its own for each run keeps the prefix cache from carrying over.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One request."""

    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """Requests that are sent at once, in this order."""

    items: tuple[Item, ...]
    seed: int
    temperature: float = 0.0
    ignore_eos: bool = True
    """Off: an answer may end before its `max_tokens`."""

    @property
    def output_tokens(self) -> int:
        return sum(item.max_tokens for item in self.items)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(item.prompt) for item in self.items)


Lengths = Callable[[random.Random], int]


def constant(length: int) -> Lengths:
    return lambda rng: length


def exponential(mean: int, most: int) -> Lengths:
    """Lengths of exponential distribution, at least 1 and at most `most`."""
    return lambda rng: min(most, max(1, math.ceil(rng.expovariate(1 / mean))))


def random_workload(
    count: int, prompt: int, output: Lengths, vocab: int, seed: int, shared: int = 0, temperature: float = 0.0
) -> Workload:
    """`count` prompts of `prompt` tokens, the first `shared` of which are the same in all."""
    rng = random.Random(seed)
    low = min(100, vocab - 1)
    head = tuple(rng.randrange(low, vocab) for _ in range(shared))
    items = []
    for _ in range(count):
        tail = tuple(rng.randrange(low, vocab) for _ in range(prompt - shared))
        items.append(Item(head + tail, output(rng)))
    return Workload(tuple(items), seed, temperature)
