"""From a body to token ids: chat messages through the template, completion prompts as text or ids.

Text that cannot fit is refused before it is tokenised; long text is tokenised in a worker thread, so that one huge
prompt does not hold up the streams of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from octavo.config import ServerConfig
from octavo.engine.detokenizer import TokenBytes
from octavo.server.errors import ApiError
from octavo.server.params import ModelLimits, check_choices, refuse_length
from octavo.server.prompt_told import Echo, echo_of
from octavo.server.protocol import ChatBody, ChatMessage, CompletionBody

LONG_TEXT = 2048
"""Characters from which on text is tokenised in a worker thread."""

Encode = Callable[[str], list[int]]


def message_dict(message: ChatMessage, index: int, max_parts: int) -> dict[str, Any]:
    """A turn as templates see it: `content` is always a string."""
    turn: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message, index, max_parts),
    }
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls:
        turn["tool_calls"] = [call.as_dict() for call in message.tool_calls]
    if message.reasoning_content is not None:
        turn["reasoning_content"] = message.reasoning_content
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _content(message: ChatMessage, index: int, max_parts: int) -> str:
    content = message.content
    if content is None:
        if message.role != "assistant":
            raise ApiError(f"A message of role {message.role} needs content.", param=f"messages[{index}].content")
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(content):
        where = f"messages[{index}].content[{number}]"
        if number >= max_parts:
            raise ApiError(f"A message may have {max_parts} parts at most.", param=f"messages[{index}].content")
        kind = part.get("type")
        if kind != "text":
            shown = kind[:40] if isinstance(kind, str) else type(kind).__name__
            raise ApiError(f"A content part of type {shown!r} is not possible; send text.", param=f"{where}.type")
        text = part.get("text")
        if not isinstance(text, str):
            raise ApiError("A content part of type 'text' needs a string as text.", param=f"{where}.text")
        texts.append(text)
    return "".join(texts)


def chat_messages(body: ChatBody, config: ServerConfig) -> list[dict[str, Any]]:
    if len(body.messages) > config.max_messages:
        raise ApiError(f"messages may hold {config.max_messages} at most.", param="messages")
    return [message_dict(message, index, config.max_content_parts) for index, message in enumerate(body.messages)]


async def completion_prompts(
    body: CompletionBody, encode: Encode, limits: ModelLimits, config: ServerConfig
) -> list[list[int]]:
    """The prompts of a completion, as ids."""
    prompt = body.prompt
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list) and prompt:
        prompts = [prompt] if type(prompt[0]) is int else prompt
    else:
        raise ApiError("prompt must be a string, a list of strings, token ids or a list of token ids.", param="prompt")
    if len(prompts) > config.max_prompts:
        raise ApiError(f"prompt may hold {config.max_prompts} prompts at most.", param="prompt")
    check_choices(body, config, len(prompts))
    return [await _prompt_ids(one, encode, limits) for one in prompts]


def echoes(body: ChatBody | CompletionBody, ids: Sequence[list[int]], tokens: TokenBytes) -> list[Echo | None]:
    """Each prompt as the answer repeats it; None where it does not."""
    if not (isinstance(body, CompletionBody) and body.echo):
        return [None] * len(ids)
    sent = body.prompt if isinstance(body.prompt, list) and type(body.prompt[0]) is not int else [body.prompt]
    return [
        echo_of(prompt, text if isinstance(text, str) else None, tokens) for prompt, text in zip(ids, sent, strict=True)
    ]


async def _prompt_ids(prompt: Any, encode: Encode, limits: ModelLimits) -> list[int]:
    if isinstance(prompt, str):
        ids = encode(prompt) if len(prompt) < LONG_TEXT else await asyncio.to_thread(encode, prompt)
    elif isinstance(prompt, list):
        ids = prompt
        if len(ids) > limits.max_model_len and type(ids[0]) is int:
            refuse_length(len(ids), limits, "prompt")
        for token in ids:
            if type(token) is not int or not 0 <= token < limits.num_tokens:
                raise ApiError(
                    f"prompt must be text, or token ids that are integers from 0 to {limits.num_tokens - 1}.",
                    param="prompt",
                )
    else:
        raise ApiError("prompt must be a string, a list of strings, token ids or a list of token ids.", param="prompt")
    if not ids:
        raise ApiError("prompt is empty; send at least one token.", param="prompt")
    return ids
