"""Sampling fields over HTTP on a real model: edges, choices, seeds, biases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.test_streams import joined
from tests.support.server import Server

PROMPT = "the world in the other"


def text(server: Server, **fields: Any) -> str:
    body = server.complete(prompt=PROMPT, max_tokens=8, ignore_eos=True, **fields)
    return str(body["choices"][0]["text"])


@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3])
def test_a_tiny_temperature_is_greedy(tiny: Server, temperature: float) -> None:
    assert text(tiny, temperature=temperature, seed=5) == text(tiny, temperature=0)


@pytest.mark.parametrize("edge", [{"top_p": 0}, {"top_p": 1e-8}, {"top_k": 1}, {"min_p": 1}])
def test_the_narrowest_choice_is_greedy(tiny: Server, edge: dict[str, Any]) -> None:
    assert text(tiny, temperature=1, seed=5, **edge) == text(tiny, temperature=0)


@pytest.mark.parametrize(
    "edge", [{"top_p": 1}, {"top_k": 0}, {"top_k": -1}, {"top_k": 268}, {"top_k": 10**9}, {"min_p": 0}]
)
def test_the_widest_choice_is_no_limit(tiny: Server, edge: dict[str, Any]) -> None:
    assert text(tiny, temperature=1.5, seed=5, **edge) == text(tiny, temperature=1.5, seed=5)


def test_choices_differ_repeat_and_agree_with_one_choice_alone(tiny: Server) -> None:
    fields = {
        "prompt": PROMPT,
        "temperature": 1,
        "seed": 7,
        "logit_bias": {"261": -100},
        "max_tokens": 12,
        "logprobs": 0,
    }
    body, again = (tiny.complete(n=4, **fields) for _ in range(2))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["choices"] == again["choices"]
    assert len({choice["text"] for choice in body["choices"]}) > 1
    assert tiny.complete(n=1, **fields)["choices"][0] == body["choices"][0]
    assert not any(" the" in choice["logprobs"]["tokens"] for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == sum(len(c["logprobs"]["tokens"]) for c in body["choices"])
    events = tiny.stream("/v1/completions", {"n": 4, **fields})
    assert [joined(events, i) for i in range(4)] == [choice["text"] for choice in body["choices"]]


def test_without_a_seed_answers_differ(tiny: Server) -> None:
    assert len({text(tiny, temperature=2.0) for _ in range(6)}) > 1


def test_a_bias_forces_a_token(tiny: Server) -> None:
    assert text(tiny, temperature=1, logit_bias={"261": 100}) == " the" * 8


@pytest.mark.parametrize("seed", [-1, 0, 2**63 - 1, -(2**63)])
def test_any_64_bit_seed_is_repeatable(tiny: Server, seed: int) -> None:
    assert text(tiny, temperature=1.5, seed=seed) == text(tiny, temperature=1.5, seed=seed)


@pytest.mark.parametrize("logprobs", [0, 1, 5])
def test_logprobs_are_finite_and_as_many_as_asked_for(tiny: Server, logprobs: int) -> None:
    body = tiny.complete(prompt=PROMPT, max_tokens=5, temperature=1, top_k=1, logprobs=logprobs, ignore_eos=True)
    found = body["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["text_offset"]) == 5
    assert all(-10_000 < value <= 0 for value in found["token_logprobs"]), found
    assert all(max(1, logprobs) <= len(top) <= logprobs + 1 for top in found["top_logprobs"])
