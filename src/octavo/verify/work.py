"""What is asked in every cell of the matrix, and how two answers differ.

Everything follows from a seed. The same requests come in every cell; noise differs from cell to cell. Off switch: none.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from octavo.types import NewRequest, SamplingParams, TokenLogprobs

LONG, MIDDLE, SHORT = 1060, 70, 33
"""Prompt tokens: two whole partitions and a rest; several blocks; a block and one."""
OUTPUT = 6
NOISE = 4
"""Other requests in a noisy cell."""


@dataclass(frozen=True)
class Asked:
    """One request of the matrix, by name."""

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    choices: int = 1

    def request(self, request_id: int, choice: int) -> NewRequest:
        return NewRequest(
            request_id=request_id, prompt=list(self.prompt), params=self.params, seed=self.seed, choice=choice
        )


@dataclass
class Answer:
    """What one choice of a request got."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]


@dataclass(frozen=True)
class Difference:
    """The first place where an answer differs from what it is alone."""

    request: str
    choice: int
    position: int
    expected: str
    got: str

    def text(self) -> str:
        where = f"{self.request}, choice {self.choice}, position {self.position}"
        return f"{where}: expected {self.expected}, got {self.got}"


def draw_requests(vocab: int, longest: int, seed: int, slow: bool) -> list[Asked]:
    """The requests of a model whose prompts may have `longest` tokens. slow: short ones alone."""
    rng = random.Random(seed)

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab) for _ in range(max(1, min(length, longest))))

    drawn = SamplingParams(max_tokens=OUTPUT, ignore_eos=True, temperature=0.8, top_p=0.95, logprobs=2)
    greedy = SamplingParams(max_tokens=OUTPUT, ignore_eos=True, temperature=0.0, logprobs=3)
    penalised = SamplingParams(
        max_tokens=OUTPUT,
        ignore_eos=True,
        temperature=0.9,
        top_k=50,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        logprobs=1,
    )
    long = 12 if slow else LONG
    return [
        Asked("long", prompt(long), drawn, rng.getrandbits(64), choices=3),
        Asked("middle", prompt(20 if slow else MIDDLE), penalised, rng.getrandbits(64)),
        Asked("short", prompt(SHORT), greedy, rng.getrandbits(64)),
    ]


def draw_noise(vocab: int, longest: int, rng: random.Random, first_id: int) -> list[NewRequest]:
    """Other people's requests."""
    found = []
    for number in range(NOISE):
        length = max(1, min(rng.randint(1, 90), longest))
        params = SamplingParams(max_tokens=rng.randint(1, 12), temperature=1.0, ignore_eos=True)
        prompt = [rng.randrange(vocab) for _ in range(length)]
        found.append(NewRequest(request_id=first_id + number, prompt=prompt, params=params, seed=rng.getrandbits(64)))
    return found


def first_difference(name: str, choice: int, expected: Answer, got: Answer) -> Difference | None:
    """Where tokens, log-probabilities or alternatives first differ, to the bit."""
    for position in range(max(len(expected.tokens), len(got.tokens))):
        one, two = _entry(expected, position), _entry(got, position)
        if one != two:
            return Difference(name, choice, position, one, two)
    return None


def _entry(answer: Answer, position: int) -> str:
    if position >= len(answer.tokens):
        return "nothing"
    entry = answer.logprobs[position]
    others = " ".join(f"{i}:{_bits(x)}" for i, x in zip(entry.top_ids, entry.top_logprobs, strict=True))
    return f"token {answer.tokens[position]} {_bits(entry.logprob)} [{others}]"


def _bits(value: float) -> str:
    return str(struct.pack(">f", value).hex())
