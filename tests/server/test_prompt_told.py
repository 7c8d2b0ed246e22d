"""echo, prompt_logprobs, max_tokens 0 and best_of over HTTP: right, and streamed as whole."""

from __future__ import annotations

import random
import secrets
from typing import Any

import pytest

from octavo.models.tokenizer import Tokenizer
from octavo.server.prompt_told import echo_of
from tests.server.test_streams import joined
from tests.support.server import Server

PROMPT = "the 世界 in the other"
GREEDY = {"temperature": 0, "ignore_eos": True}


def lists(events: list[dict[str, Any]], index: int = 0) -> dict[str, list[Any]]:
    """The joined lists of a streamed completion's logprobs."""
    found: dict[str, list[Any]] = {}
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index and choice["logprobs"]:
                for name, values in choice["logprobs"].items():
                    found.setdefault(name, []).extend(values)
    return found


def told(events: list[dict[str, Any]], index: int = 0) -> Any:
    """The one `prompt_logprobs` of a streamed completion's choice."""
    (found,) = [
        choice["prompt_logprobs"]
        for event in events
        for choice in event["choices"]
        if choice["index"] == index and "prompt_logprobs" in choice
    ]
    return found


@pytest.mark.parametrize("logprobs", [None, 0, 3])
@pytest.mark.parametrize("n", [1, 3])
def test_an_echo_stands_in_front_of_the_answer_with_its_logprobs(tiny: Server, logprobs: int | None, n: int) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "seed": 3, "n": n, "logprobs": logprobs}
    plain = tiny.complete(**fields)
    body = tiny.complete(**fields, echo=True)
    events = tiny.stream("/v1/completions", {**fields, "echo": True})
    assert body["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] == 4 * n
    for index, (choice, alone) in enumerate(zip(body["choices"], plain["choices"], strict=True)):
        assert choice["text"] == PROMPT + alone["text"] == joined(events, index)
        if logprobs is None:
            assert choice["logprobs"] is None
            continue
        found, count = choice["logprobs"], body["usage"]["prompt_tokens"]
        assert found == lists(events, index)
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            assert found[name][count:] == alone["logprobs"][name]
        assert [at - len(PROMPT) for at in found["text_offset"][count:]] == alone["logprobs"]["text_offset"]
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        assert all(-10_000 < value <= 0 for value in found["token_logprobs"][1:])


def test_a_scored_prompt_has_the_logprobs_of_its_generation(tiny: Server) -> None:
    """What was generated with log-probabilities, sent back as a prompt of ids, scores the same."""
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    ids = [rng.randrange(3, 268) for _ in range(rng.randint(1, 40))]
    said = tiny.complete(prompt=ids, max_tokens=30, seed=seed, ignore_eos=True, logprobs=2, echo=True)
    numbers = tiny.complete(prompt=ids, max_tokens=30, seed=seed, ignore_eos=True, prompt_logprobs=0)
    assert numbers["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    found = said["choices"][0]["logprobs"]
    scores = tiny.complete(prompt=said["choices"][0]["text"], max_tokens=0, logprobs=2, echo=True)
    assert scores["usage"]["completion_tokens"] == 0, f"seed {seed}"
    if scores["choices"][0]["logprobs"]["tokens"] == found["tokens"]:
        assert scores["choices"][0]["logprobs"] == found, f"seed {seed}"


def test_log_likelihoods_as_evaluation_harnesses_ask_for_them(tiny: Server, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(text) for text in (PROMPT, "a", "hello in the world")]
    body = tiny.complete(prompt=prompts, max_tokens=0, logprobs=1, echo=True, temperature=0)
    longer = tiny.complete(prompt=prompts, max_tokens=1, logprobs=1, echo=True, temperature=0)
    for ids, choice, more in zip(prompts, body["choices"], longer["choices"], strict=True):
        found = choice["logprobs"]
        assert choice["finish_reason"] == "length" and choice["text"] == tokenizer.decode(ids)
        assert len(found["tokens"]) == len(ids) and len(more["logprobs"]["tokens"]) == len(ids) + 1
        assert {name: values[: len(ids)] for name, values in more["logprobs"].items()} == found
        for token, top in zip(found["tokens"][1:], found["top_logprobs"][1:], strict=True):
            assert token in top and 1 <= len(top) <= 2


@pytest.mark.parametrize("top_k", [0, 1])
def test_an_echo_of_a_narrow_draw_is_finite(tiny: Server, top_k: int) -> None:
    body = tiny.complete(prompt="correct horse", echo=True, logprobs=5, temperature=1, top_k=top_k, max_tokens=3)
    found = body["choices"][0]["logprobs"]
    assert all(-10_000 < value <= 0 for value in found["token_logprobs"][1:])


def test_prompt_logprobs_of_completions_and_chats(tiny: Server, tokenizer: Tokenizer) -> None:
    fields = {"max_tokens": 2, "prompt_logprobs": 2, **GREEDY}
    body = tiny.complete(prompt=PROMPT, n=2, **fields)
    events = tiny.stream("/v1/completions", {"prompt": PROMPT, "n": 2, **fields})
    ids = tokenizer.encode(PROMPT)
    for index, choice in enumerate(body["choices"]):
        scores = choice["prompt_logprobs"]
        assert scores == told(events, index) and scores[0] is None and len(scores) == len(ids)
        for token, entry in zip(ids[1:], scores[1:], strict=True):
            assert next(iter(entry)) == str(token) and 2 <= len(entry) <= 3
            ranked = sorted(entry.values(), key=lambda each: each["rank"])
            assert [each["rank"] for each in ranked[:2]] == [1, 2]
            assert ranked == sorted(ranked, key=lambda each: -each["logprob"])
    chat = tiny.chat("hello", n=2, **fields)
    chunks = tiny.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "n": 2, **fields})
    (streamed,) = [chunk["prompt_logprobs"] for chunk in chunks if "prompt_logprobs" in chunk]
    assert streamed == chat["prompt_logprobs"] and len(streamed) == chat["usage"]["prompt_tokens"]
    for index, choice in enumerate(chat["choices"]):
        parts = [
            each["delta"].get("content", "") for chunk in chunks for each in chunk["choices"] if each["index"] == index
        ]
        assert "".join(parts) == choice["message"]["content"]
    assert "prompt_logprobs" not in tiny.chat("hello", max_tokens=1)


def test_without_tokens_a_chat_scores_its_prompt(tiny: Server) -> None:
    body = tiny.chat("hello", max_tokens=0, prompt_logprobs=0, n=2)
    for choice in body["choices"]:
        assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"logprobs": 2}])
def test_no_tokens_and_nothing_to_score_is_refused(tiny: Server, fields: dict[str, Any]) -> None:
    for _ in range(2):
        response = tiny.post("/v1/completions", {"prompt": "a", "max_tokens": 0, **fields})
        assert response.status_code == 400 and response.json()["error"]["param"] == "max_tokens"
    chat = tiny.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 0})
    assert chat.status_code == 400


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("prompt_logprobs", {"prompt_logprobs": -1}),
        ("prompt_logprobs", {"prompt_logprobs": True}),
        ("echo", {"echo": "yes"}),
        ("best_of", {"best_of": 17}),
        ("best_of", {"best_of": 2, "n": 3}),
        ("best_of", {"best_of": 2, "stream": True}),
        ("best_of", {"best_of": 0}),
    ],
)
def test_what_cannot_work_is_refused_by_name(tiny: Server, field: str, fields: dict[str, Any]) -> None:
    response = tiny.post("/v1/completions", {"prompt": "a", **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field and field in error["message"]


def test_the_best_of_several_choices_have_the_greatest_mean_logprob(tiny: Server) -> None:
    fields = {"prompt": [PROMPT, "hello"], "max_tokens": 6, "seed": 5, "temperature": 1.3}
    everything = tiny.complete(**fields, n=6, logprobs=0)
    body = tiny.complete(**fields, n=2, best_of=6)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    expected = []
    for first in (0, 6):
        choices = everything["choices"][first : first + 6]
        means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) for c in choices]
        best = sorted(range(6), key=lambda i: (-means[i], i))[:2]
        expected += [choices[i]["text"] for i in best]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert body["usage"] == {**everything["usage"], "prompt_tokens_details": body["usage"]["prompt_tokens_details"]}
    assert tiny.complete(**fields, best_of=1)["choices"] == tiny.complete(**fields)["choices"]


def test_offsets_follow_the_text_whatever_is_put_in_front(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROMPT)
    plain = echo_of(ids, PROMPT, tokenizer)
    assert echo_of([1, *ids], PROMPT, tokenizer).offsets == (0, *plain.offsets)
    assert echo_of(ids, None, tokenizer) == plain
    assert [PROMPT[at] for at in plain.offsets][:2] == [tokenizer.decode(ids[:1])[0], tokenizer.decode(ids[1:2])[0]]
