"""Token ids over HTTP are those that the generating endpoints count; texts come back."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.models.tokenizer import Tokenizer
from tests.support.server import Server

MESSAGES = [{"role": "user", "content": "hi <|im_end|> 世界"}]


def asked(server: Server, path: str, **body: Any) -> dict[str, Any]:
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_prompt_and_its_way_back(tiny: Server, tokenizer: Tokenizer) -> None:
    text = "the world <|im_end|> \u00e9 \U0001f600"
    answer = asked(tiny, "/tokenize", prompt=text)
    assert answer["tokens"] == tokenizer.encode(text, parse_special=True)
    assert (answer["count"], answer["max_model_len"], answer["token_strs"]) == (len(answer["tokens"]), 512, None)
    completion = tiny.complete(prompt=text, max_tokens=1)
    assert completion["usage"]["prompt_tokens"] == answer["count"]
    assert asked(tiny, "/detokenize", tokens=answer["tokens"]) == {"prompt": text}
    strings = asked(tiny, "/tokenize", prompt="the world", return_token_strs=True, add_special_tokens=False)
    assert "".join(strings["token_strs"]) == "the\u0120world"


def test_a_chats_ids_are_those_of_the_chat(tiny: Server) -> None:
    answer = asked(tiny, "/tokenize", messages=MESSAGES, model="tiny")
    chat = tiny.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}).json()
    assert chat["usage"]["prompt_tokens"] == answer["count"] == len(answer["tokens"])
    assert answer["tokens"][0] == 1 and answer["tokens"].count(2) == 1, "a user's marker is text"


def test_a_prompt_may_be_longer_than_the_context(tiny: Server) -> None:
    assert asked(tiny, "/tokenize", prompt="the " * 5000)["count"] > 512
    assert asked(tiny, "/tokenize", prompt="") == {"count": 0, "max_model_len": 512, "tokens": [], "token_strs": None}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1], "skip": 1}, "skip"),
    ],
)
def test_refusals_name_the_field(tiny: Server, path: str, body: dict[str, Any], param: str) -> None:
    response = tiny.post(path, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param, response.text


def test_the_page_needs_nothing_from_elsewhere(tiny: Server) -> None:
    response = tiny.client.get("/docs")
    assert response.status_code == 200 and "default-src 'none'" in response.headers["content-security-policy"]
    assert "http://" not in response.text and "https://" not in response.text and "src=" not in response.text
