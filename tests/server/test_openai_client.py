"""The official client, both kinds: chats and completions, streamed and not, choices, log-probabilities, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from tests.support.server import Server

MESSAGES: Any = [{"role": "user", "content": "the world"}]


@pytest.fixture
def client(tiny: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_and_its_stream_agree(client: openai.OpenAI) -> None:
    body: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0, "user": "me"}
    whole = client.chat.completions.create(**body)
    pieces = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage == whole.usage
    assert whole.usage is not None and whole.usage.completion_tokens == 8
    assert pieces[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_the_streaming_helper_collects_a_chat(client: openai.OpenAI) -> None:
    stop = {"stop_token_ids": list(range(3, 67)), "min_tokens": 4}
    body: Any = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "extra_body": stop}
    with client.chat.completions.stream(**body) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert final.choices[0].message.content == client.chat.completions.create(**body).choices[0].message.content


def test_a_clients_own_answer_can_be_sent_back(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4)
    again: Any = [*MESSAGES, first.choices[0].message.model_dump(), {"role": "user", "content": "more"}]
    assert client.chat.completions.create(model="tiny", messages=again, max_tokens=4).choices


def test_choices_and_logprobs_of_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=5, n=3, seed=3, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in choice.logprobs.content)


def test_completions_of_several_prompts(client: openai.OpenAI) -> None:
    body: Any = {"model": "tiny", "prompt": ["the", "in"], "max_tokens": 5, "logprobs": 2, "temperature": 0}
    whole = client.completions.create(**body)
    pieces = list(client.completions.create(**body, stream=True))
    for index in (0, 1):
        text = "".join(c.text for piece in pieces for c in piece.choices if c.index == index)
        assert text == whole.choices[index].text
        logprobs = whole.choices[index].logprobs
        assert logprobs is not None and logprobs.tokens is not None and len(logprobs.tokens) == 5


def test_fields_beyond_the_vendors_go_through_extra_body(client: openai.OpenAI) -> None:
    extra = {"top_k": 1, "min_tokens": 2, "repetition_penalty": 1.1, "ignore_eos": True}
    assert client.completions.create(model="tiny", prompt="a", max_tokens=4, extra_body=extra).choices


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="tools would work"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, functions=[{"name": "f"}])


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_the_asynchronous_client_streams_many_at_once(tiny: Server) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream: AsyncIterator[Any] = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=10, seed=seed, temperature=1.5, stream=True
        )
        return "".join([piece.choices[0].delta.content or "" async for piece in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed % 4) for seed in range(12)))

    texts = asyncio.run(all_of_them())
    assert texts[:4] * 3 == texts
    assert len(set(texts)) > 1
