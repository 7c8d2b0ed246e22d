"""The official client: chats and completions, streamed and not, embeddings, models, errors."""

import math
import os

import openai

model = os.environ["OCTAVO_MODEL"]
messages = [{"role": "user", "content": "Name a colour."}]
with openai.OpenAI(base_url=os.environ["OCTAVO_URL"]) as client:
    assert [entry.id for entry in client.models.list()] == [model]
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0)
    pieces = list(
        client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text and text == whole.choices[0].message.content
    assert pieces[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    asked = {"model": model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    completion = client.completions.create(**asked, logprobs=2)
    assert "Paris" in completion.choices[0].text
    assert len(completion.choices[0].logprobs.tokens) == completion.usage.completion_tokens
    streamed = "".join(piece.choices[0].text for piece in client.completions.create(**asked, stream=True))
    assert streamed == completion.choices[0].text
    vectors = [entry.embedding for entry in client.embeddings.create(model=model, input=["a cat", "a dog"]).data]
    assert all(abs(math.fsum(x * x for x in vector) - 1) < 1e-5 for vector in vectors)
    try:
        client.chat.completions.create(model="other", messages=messages)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("another model was served")
