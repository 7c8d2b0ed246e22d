"""Embeddings over HTTP: shapes, one vector whatever surrounds it, refusals, and the official client."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import openai
import pytest

from octavo.models.tokenizer import Tokenizer
from tests.support.server import Server


def vectors(server: Server, given: Any, **fields: Any) -> list[list[float]]:
    response = server.post("/v1/embeddings", {"input": given, **fields})
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return [entry["embedding"] for entry in data]


def test_vectors_have_length_one_and_are_those_of_the_text_alone(tiny: Server, tokenizer: Tokenizer) -> None:
    texts = ["the world", "in", "the other one " * 40]
    for pooling in ("mean", "last"):
        together = vectors(tiny, texts, pooling=pooling)
        assert [vectors(tiny, text, pooling=pooling)[0] for text in texts] == together
        ids = [tokenizer.encode(text) for text in texts]
        assert vectors(tiny, ids, pooling=pooling) == together
        assert vectors(tiny, ids[0], pooling=pooling) == together[:1]
        assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert vectors(tiny, texts[0]) == vectors(tiny, texts[0], pooling="mean") != vectors(tiny, texts[0], pooling="last")


def test_base64_is_the_same_vector_and_fewer_dimensions_its_beginning(tiny: Server) -> None:
    [whole] = vectors(tiny, "the world")
    [packed] = vectors(tiny, "the world", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == whole  # type: ignore[arg-type]
    [short] = vectors(tiny, "the world", dimensions=5)
    assert np.allclose(short, np.array(whole[:5]) / np.linalg.norm(whole[:5]), atol=1e-6)
    response = tiny.post("/v1/embeddings", {"input": "a", "dimensions": len(whole) + 1})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "dimensions")


def test_more_inputs_than_may_be_open_come_in_order_and_count_once(tiny: Server) -> None:
    rng = random.Random(5)
    given = [[rng.randrange(3, 200) for _ in range(rng.randint(1, 9))] for _ in range(300)]
    before = tiny.metric("octavo_reply_prompt_tokens_total")
    response = tiny.post("/v1/embeddings", {"input": given})
    body = response.json()
    count = sum(map(len, given))
    assert body["usage"] == {
        "prompt_tokens": count,
        "total_tokens": count,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert tiny.metric("octavo_reply_prompt_tokens_total") == before + count
    for index in rng.sample(range(300), 3):
        assert vectors(tiny, given[index]) == [body["data"][index]["embedding"]]
    assert tiny.idle()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": [10**6]}, "input"),
        ({"input": [1, True]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [3] * 513}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "max_tokens": 3}, "max_tokens"),
        ({}, "input"),
    ],
)
def test_refusals_name_the_field(tiny: Server, body: dict[str, Any], param: str) -> None:
    response = tiny.post("/v1/embeddings", body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_an_input_may_fill_the_context(tiny: Server) -> None:
    assert len(vectors(tiny, [3] * 512)) == 1


def test_the_official_client(tiny: Server) -> None:
    """It asks for base64 where nothing else is said."""
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="tiny", input=["the world", "in"])
    assert [entry.embedding for entry in answer.data] == vectors(tiny, ["the world", "in"])
