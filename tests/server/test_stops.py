"""Stop strings and stop tokens over HTTP: the cut, what is shown, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.models.tokenizer import Tokenizer
from tests.server.test_streams import finishes, joined
from tests.support.server import Server, wait_until

TEXT = "The answer is in the other letter, 世界 and all."


@pytest.mark.parametrize("stop", [TEXT[10:22], TEXT[1:4], "世", "界 a", TEXT[-3:], "T"])
def test_an_answer_is_cut_before_the_stop_string_and_none_of_it_is_sent(
    echo: Server, tokenizer: Tokenizer, stop: str
) -> None:
    expected = TEXT[: TEXT.index(stop)]
    fields = {"prompt": TEXT, "max_tokens": 100, "stop": stop}
    body = echo.complete(**fields)
    events = echo.stream("/v1/completions", {**fields, "stream_options": {"include_usage": True}})
    assert body["choices"][0]["text"] == joined(events) == expected
    assert finishes(events) == [body["choices"][0]["finish_reason"]] == ["stop"]
    ids = tokenizer.encode(TEXT)
    needed = next(n for n in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:n]))
    assert body["usage"]["completion_tokens"] == events[-1]["usage"]["completion_tokens"] == needed


def test_logprobs_end_with_the_token_that_completed_the_stop_string(echo: Server) -> None:
    body = echo.complete(prompt=TEXT, max_tokens=100, stop="other", logprobs=0)
    assert len(body["choices"][0]["logprobs"]["tokens"]) == body["usage"]["completion_tokens"]


def test_a_stop_string_that_never_comes_is_not_swallowed(echo: Server) -> None:
    body = echo.complete(prompt=TEXT, max_tokens=100, stop=["all.!", "xyz"])
    assert body["choices"][0]["text"] == TEXT


def test_the_stop_string_is_kept_where_asked_for(echo: Server) -> None:
    body = echo.complete(prompt=TEXT, max_tokens=100, stop="other", include_stop_str_in_output=True)
    assert body["choices"][0]["text"] == TEXT[: TEXT.index("other") + 5]


def test_the_engine_stops_with_the_text(echo: Server) -> None:
    before = echo.metric("octavo_generated_tokens_total")
    echo.complete(prompt=TEXT, max_tokens=4000, ignore_eos=True, stop="other")
    wait_until(echo.idle, "the request has left the engine")
    assert echo.metric("octavo_generated_tokens_total") - before < 500


@pytest.mark.parametrize("stop", [None, []])
def test_null_and_an_empty_list_are_no_stop(echo: Server, stop: Any) -> None:
    assert echo.complete(prompt=TEXT, max_tokens=100, stop=stop)["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("stop", ["", [""], ["", "\n"], ["a"] * 17, ["a" * 2000]])
def test_stop_strings_that_cannot_work_are_refused(echo: Server, stop: Any) -> None:
    response = echo.post("/v1/completions", {"prompt": "a", "stop": stop})
    assert response.status_code == 400 and response.json()["error"]["param"] == "stop"


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_a_special_stop_token_is_shown_only_where_asked_for_and_not_skipped(
    echo: Server, tokenizer: Tokenizer, include: bool, skip: bool
) -> None:
    ids = [*tokenizer.encode("all text"), 1, *tokenizer.encode(" more")]
    body = echo.complete(
        prompt=ids, max_tokens=50, stop_token_ids=[1], skip_special_tokens=skip, include_stop_str_in_output=include
    )
    shown = "<|im_start|>" if include and not skip else ""
    assert body["choices"][0]["text"] == "all text" + shown
    assert body["choices"][0]["finish_reason"] == "stop"


def test_an_ordinary_stop_token_is_left_out_and_counted(echo: Server, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abc")
    body = echo.complete(prompt=ids, max_tokens=50, stop_token_ids=[ids[1]])
    assert body["choices"][0]["text"] == "a"
    assert body["usage"]["completion_tokens"] == 2


def test_min_tokens_hold_off_the_end_and_stop_text(echo: Server) -> None:
    body = echo.complete(prompt="abcd", max_tokens=50, min_tokens=10)
    assert body["choices"][0]["text"].startswith("abcdabcd")
    assert body["usage"]["completion_tokens"] >= 10
    body = echo.complete(prompt="abcd", max_tokens=50, min_tokens=6, stop="b")
    assert body["choices"][0]["text"] == "abcda"


def test_ignore_eos_fills_max_tokens(echo: Server) -> None:
    body = echo.complete(prompt="abcd", max_tokens=20, ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 20
    assert body["choices"][0]["finish_reason"] == "length"
