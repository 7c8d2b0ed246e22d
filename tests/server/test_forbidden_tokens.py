"""bad_words, allowed_token_ids and min_tokens over HTTP on a real model: what may not be drawn is not drawn."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.models.tokenizer import Tokenizer
from tests.server.test_streams import joined
from tests.support.server import Server

PROMPT = "the world in the other"


def generated(server: Server, **fields: Any) -> list[str]:
    """The tokens of an answer, which is the same streamed."""
    fields = {"prompt": PROMPT, "max_tokens": 24, "temperature": 1.0, "seed": 11, "logprobs": 0, **fields}
    body = server.complete(**fields)
    assert joined(server.stream("/v1/completions", fields)) == body["choices"][0]["text"]
    return list(body["choices"][0]["logprobs"]["tokens"])


def test_a_bad_word_is_never_drawn_with_or_without_a_space_in_front(tiny: Server) -> None:
    bias = {"261": 6, "260": 6}  # " the", "he"
    assert {" the", "he"} & set(generated(tiny, logit_bias=bias))
    kept = generated(tiny, logit_bias=bias, bad_words=["the", " he"])
    assert " the" not in kept and "he" not in kept


def test_a_bad_word_of_several_tokens_is_cut_at_its_last(tiny: Server, tokenizer: Tokenizer) -> None:
    free = generated(tiny, temperature=0, ignore_eos=True)
    ids = [tokenizer.token_id("x"), tokenizer.token_id("y"), tokenizer.token_id("z")]
    bias = {str(i): 100 for i in ids}
    fields = {"logit_bias": bias, "ignore_eos": True, "max_tokens": 60}
    assert "xyz" in "".join(generated(tiny, **fields))
    kept = "".join(generated(tiny, **fields, bad_words=["xyz", "zz"]))
    assert "xyz" not in kept and "zz" not in kept and "xy" in kept
    assert generated(tiny, temperature=0, ignore_eos=True, bad_words=["never said"]) == free


def test_the_prompts_end_begins_no_bad_word(tiny: Server, tokenizer: Tokenizer) -> None:
    """Sequences are looked for in the output alone."""
    only = [tokenizer.token_id("y")]
    assert generated(tiny, prompt="ax", allowed_token_ids=only, bad_words=["xy"], max_tokens=2) == ["y", "y"]


def test_nothing_but_allowed_ids_is_drawn(tiny: Server, tokenizer: Tokenizer) -> None:
    ids = [tokenizer.token_id(text) for text in ("a", "b", "Ġthe")]
    assert set(generated(tiny, allowed_token_ids=ids)) <= {"a", "b", " the"}
    again = generated(tiny, allowed_token_ids=ids, min_tokens=3, bad_words=["b"], n=3)
    assert set(again) == {"a", " the"} and len(again) == 24


def test_an_end_that_is_allowed_waits_for_min_tokens(tiny: Server) -> None:
    fields = {"prompt": PROMPT, "allowed_token_ids": [2, 70], "logit_bias": {"2": 100}, "max_tokens": 9}
    assert tiny.complete(**fields)["usage"]["completion_tokens"] == 1
    body = tiny.complete(**fields, min_tokens=5)
    assert body["usage"]["completion_tokens"] == 6 and body["choices"][0]["finish_reason"] == "stop"


def test_where_nothing_is_left_the_error_names_the_fields(tiny: Server) -> None:
    response = tiny.post("/v1/completions", {"prompt": "a", "allowed_token_ids": [2], "min_tokens": 1})
    assert response.status_code == 500
    message = response.json()["error"]["message"]
    assert "min_tokens and allowed_token_ids" in message


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bad_words", [""]),
        ("bad_words", ["a"] * 129),
        ("bad_words", ["a" * 257]),
        ("bad_words", "a"),
        ("bad_words", [3]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [268]),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", [True]),
        ("allowed_token_ids", [1] * 65_537),
    ],
)
def test_what_cannot_work_is_refused_by_name(tiny: Server, path: str, field: str, value: Any) -> None:
    prompt = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    response = tiny.post(path, {**prompt, field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].startswith(field) and len(error["message"]) < 300


def test_chats_have_the_same_rules(tiny: Server) -> None:
    body = tiny.chat(allowed_token_ids=[70, 71], max_tokens=5, bad_words=["a"])
    assert body["usage"]["completion_tokens"] == 5
