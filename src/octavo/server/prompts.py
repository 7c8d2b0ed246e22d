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
from octavo.server.protocol import ChatBody, ChatMessage, CommonFields, CompletionBody
from octavo.server.templates import Rendering

MAX_VARIABLES = 64
"""Of chat_template_kwargs."""
_INERT_PART_FIELDS = ("annotations", "cache_control", "id")
"""Of a content part; sent by SDKs, without effect."""
_OWN_NAMES = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template")
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
    kinds = ("text", "refusal") if message.role == "assistant" else ("text",)
    few = content[:max_parts]
    text = "".join(_part(part, kinds, f"messages[{index}].content[{number}]") for number, part in enumerate(few))
    if len(content) > max_parts:
        raise ApiError(f"A message may have {max_parts} parts at most.", param=f"messages[{index}].content")
    return text


def _part(part: dict[str, Any], kinds: tuple[str, ...], where: str) -> str:
    """The text of a part, which is of one of these types."""
    kind = part.get("type")
    if kind not in kinds:
        shown = kind[:40] if isinstance(kind, str) else type(kind).__name__
        raise ApiError(f"A content part of type {shown!r} is not possible; send text.", param=f"{where}.type")
    text = part.get(kind)
    if not isinstance(text, str):
        raise ApiError(f"A content part of type {kind!r} needs a string as {kind}.", param=f"{where}.{kind}")
    for name in part:
        if name not in ("type", kind, *_INERT_PART_FIELDS):
            raise ApiError(f"Unknown field {name[:60]!r} in a content part; remove it.", param=f"{where}.{name[:60]}")
    return text


def rendering(body: ChatBody, config: ServerConfig) -> Rendering:
    """How the chat becomes a prompt."""
    if body.chat_template is not None and not config.request_templates:
        raise ApiError(
            "The field 'chat_template' is refused: the template is the model's, and --request-templates, which "
            "lets requests bring their own, is not set.",
            param="chat_template",
            code="unsupported_parameter",
        )
    if body.continue_final_message and body.add_generation_prompt:
        raise ApiError(
            "continue_final_message goes on with the last message and add_generation_prompt begins another; set one.",
            param="continue_final_message",
        )
    if body.continue_final_message and body.messages[-1].tool_calls:
        raise ApiError(
            "continue_final_message needs a last message of text alone; leave its tool_calls out.",
            param="continue_final_message",
        )
    variables = body.chat_template_kwargs or {}
    for name in variables:
        if name in _OWN_NAMES or not name.isidentifier():
            raise ApiError(
                f"chat_template_kwargs may not set {name[:40]!r}; a name that only the template knows would work.",
                param="chat_template_kwargs",
            )
    if len(variables) > MAX_VARIABLES:
        raise ApiError(f"chat_template_kwargs may hold {MAX_VARIABLES} names at most.", param="chat_template_kwargs")
    return Rendering(
        body.chat_template, body.add_generation_prompt is not False, bool(body.continue_final_message), variables
    )


def truncated(ids: list[int], body: CommonFields) -> list[int]:
    """The prompt's last tokens, where that was asked for."""
    return ids if body.truncate_prompt_tokens is None else ids[-body.truncate_prompt_tokens :]


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
    return [await _prompt_ids(one, encode, limits, body) for one in prompts]


def echoes(body: ChatBody | CompletionBody, ids: Sequence[list[int]], tokens: TokenBytes) -> list[Echo | None]:
    """Each prompt as the answer repeats it; None where it does not."""
    if not (isinstance(body, CompletionBody) and body.echo):
        return [None] * len(ids)
    sent = body.prompt if isinstance(body.prompt, list) and type(body.prompt[0]) is not int else [body.prompt]
    return [
        echo_of(prompt, text if isinstance(text, str) and body.truncate_prompt_tokens is None else None, tokens)
        for prompt, text in zip(ids, sent, strict=True)
    ]


async def _prompt_ids(prompt: Any, encode: Encode, limits: ModelLimits, body: CompletionBody) -> list[int]:
    if isinstance(prompt, str):
        ids = encode(prompt) if len(prompt) < LONG_TEXT else await asyncio.to_thread(encode, prompt)
        ids = truncated(ids, body)
    elif isinstance(prompt, list):
        ids = truncated(prompt, body)
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
