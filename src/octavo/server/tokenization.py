"""POST /tokenize and /detokenize: a prompt's or a chat's token ids as the generating endpoints count them, and back.

    /tokenize    {"prompt", "add_special_tokens", "return_token_strs"} or {"messages", fields of the template}
                 -> {"count", "max_model_len", "tokens", "token_strs"}
    /detokenize  {"tokens"} -> {"prompt"}

The engine is not asked. A prompt may be longer than the context; a chat goes the way of /v1/chat/completions, with the
same refusals. Text is bounded by the body's size, and tokenised in a thread.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from octavo.server import limits
from octavo.server.body import Receive, Scope, Send, parse_object
from octavo.server.endpoint import Endpoint
from octavo.server.errors import ApiError
from octavo.server.job import JobMaker
from octavo.server.protocol import check_chat, explain
from octavo.server.respond import Headers, send_json
from octavo.server.terms import Terms

TokenId = Annotated[int, limits.TOKEN_ID.meta()]
Model = Annotated[str, Meta(max_length=512)]


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """prompt or messages; `chat` fields are those of a chat's body that its template sees."""

    model: Model | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Annotated[str, Meta(min_length=1, max_length=limits.MAX_TEMPLATE_CHARACTERS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: Model | None = None
    tokens: list[TokenId]


_OF_CHATS = ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "tools")
Body = TypeVar("Body", TokenizeBody, DetokenizeBody)


def parse(data: bytes, kind: type[Body]) -> Body:
    """The checked body."""
    try:
        return msgspec.convert(parse_object(data), kind)
    except msgspec.ValidationError as error:
        raise explain(str(error)) from error


def parse_tokenize(data: bytes) -> TokenizeBody:
    body = parse(data, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("Send prompt or messages, and not both.", param="prompt")
    if body.messages is not None and body.add_special_tokens:
        raise ApiError(
            "add_special_tokens true has no effect on messages, whose template writes them; leave it out.",
            param="add_special_tokens",
        )
    for name in _OF_CHATS if body.messages is None else ():
        if getattr(body, name) is not None:
            raise ApiError(f"The field {name!r} needs messages.", param=name)
    return body


class _TextEndpoint(Endpoint):
    """What both share."""

    async def answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers, arrived: float) -> None:
        async with self.incoming(scope, receive) as asked:
            value = await self.value(asked.maker, asked.body, asked.terms)
        await send_json(send, value, headers)

    @abstractmethod
    async def value(self, maker: JobMaker, data: bytes, terms: Terms) -> dict[str, object]:
        """The answer to a body."""


class TokenizeEndpoint(_TextEndpoint):
    async def value(self, maker: JobMaker, data: bytes, terms: Terms) -> dict[str, object]:
        body = parse_tokenize(data)
        service = self._service
        maker.check_model(body.model)
        text, ready = service.text, service.client.ready
        assert text is not None
        if body.prompt is not None:
            add_bos = body.add_special_tokens is not False
            tokens = await asyncio.to_thread(text.prompt, body.prompt, add_bos)
        else:
            tokens = await self._chat(maker, body, terms)
        strings = [text.tokens.token_text(token) for token in tokens] if body.return_token_strs else None
        return {
            "count": len(tokens),
            "max_model_len": None if ready is None else ready.max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }

    async def _chat(self, maker: JobMaker, body: TokenizeBody, terms: Terms) -> list[int]:
        """The prompt of the chat that begins so."""
        given = {name: getattr(body, name) for name in _OF_CHATS}
        fields = {name: value for name, value in given.items() if value is not None}
        chat = check_chat({"messages": body.messages, "max_tokens": 1, **fields})
        return (await maker.chat(chat, terms)).requests[0].prompt


class DetokenizeEndpoint(_TextEndpoint):
    async def value(self, maker: JobMaker, data: bytes, terms: Terms) -> dict[str, object]:
        body = parse(data, DetokenizeBody)
        service = self._service
        maker.check_model(body.model)
        assert service.text is not None
        tokenizer = service.text.tokens
        wrong = max(body.tokens, default=0)
        if wrong >= tokenizer.num_tokens:
            raise ApiError(
                f"tokens holds {wrong}, and this model's ids go from 0 to {tokenizer.num_tokens - 1}.", param="tokens"
            )
        return {"prompt": await asyncio.to_thread(tokenizer.decode, body.tokens, False)}
