"""litellm: a chat, its stream, a completion and embeddings, with its name for servers of this kind."""

import os

import litellm

model = f"openai/{os.environ['OCTAVO_MODEL']}"
asked = {"api_base": os.environ["OCTAVO_URL"], "api_key": "none", "max_tokens": 12, "temperature": 0}
messages = [{"role": "user", "content": "Name a colour."}]
answer = litellm.completion(model=model, messages=messages, **asked)
text = answer.choices[0].message.content
assert text and answer.usage.completion_tokens > 0
pieces = litellm.completion(model=model, messages=messages, stream=True, **asked)
assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
completion = litellm.text_completion(
    model=f"text-completion-{model}", prompt="The capital of France is", **{**asked, "max_tokens": 4}
)
assert "Paris" in completion.choices[0].text
found = litellm.embedding(model=model, input=["a cat", "a dog"], api_base=asked["api_base"], api_key="none")
assert len(found.data) == 2 and len(found.data[0]["embedding"]) > 100
