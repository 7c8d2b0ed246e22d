"""POST /v1/embeddings: prompts in, the model's pooled hidden states out, each of length 1.

Life of a request: the body is checked and tokenised -> its inputs become pooled requests, of which so many are sent at
once as `max_choices` says -> each vector is cut to `dimensions`, scaled to length 1 and written as it comes -> one
body. A model trained to continue text gives vectors that compare, though not as well as one trained for it.

Off: nobody has to ask; a request that generates computes nothing for it.
"""

from __future__ import annotations

import asyncio
import base64
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.config import ServerConfig
from octavo.server import limits
from octavo.server.answer import failure, watch
from octavo.server.body import Receive, Scope, Send, parse_object
from octavo.server.endpoint import Endpoint
from octavo.server.errors import ApiError
from octavo.server.job import JobMaker
from octavo.server.protocol import Prompts, explain
from octavo.server.respond import Headers, send_json
from octavo.server.terms import Terms
from octavo.types import FinishReason, ModelInfo, NewRequest, Pooling, SamplingParams, TokenDelta

LONG_TEXT = 2048
"""Characters from which on texts are tokenised in a thread."""
_UNDRAWN = SamplingParams(max_tokens=0)
_INPUT = "input must be a string, a list of strings, token ids or a list of token ids."


class EmbeddingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields, types and bounds; null means absent."""

    input: Prompts
    model: Annotated[str, Meta(max_length=512)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    pooling: Literal["mean", "last"] | None = None
    cache_salt: Annotated[str, Meta(max_length=limits.MAX_SALT_CHARACTERS)] | None = None
    priority: Annotated[int, limits.PRIORITY.meta()] | None = None
    deadline_ms: Annotated[int, limits.DEADLINE_MS.meta()] | None = None
    user: Any = None


@dataclass(frozen=True)
class Wanted:
    """A checked body."""

    requests: list[NewRequest]
    """One an input."""
    dimensions: int | None
    base64: bool

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)


def parse_embedding(data: bytes) -> EmbeddingBody:
    try:
        return msgspec.convert(parse_object(data), EmbeddingBody)
    except msgspec.ValidationError as error:
        raise explain(str(error)) from error


def unit(vector: bytes, dimensions: int | None = None) -> array[float]:
    """A pooled vector's first `dimensions` values at length 1, float32; zeros stay zeros.

    vector: float32 little-endian. The length's square is summed exactly, so no order of addition changes a bit.
    """
    values = array("f", vector)
    if values.itemsize != 4 or memoryview(values).format != "f":
        raise AssertionError("a C float has other than four bytes here")
    kept = values[:dimensions]
    length = math.sqrt(math.fsum([value * value for value in kept]))
    return array("f", [value / length for value in kept]) if length else kept


class EmbeddingsEndpoint(Endpoint):
    async def answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers, arrived: float) -> None:
        service = self._service
        async with self.incoming(scope, receive) as asked:
            wanted = await self._wanted(asked.maker, parse_embedding(asked.body), asked.terms)
        client, terms = asked.client, asked.terms
        most = service.config.max_choices
        first = wanted.requests[:most]
        service.backlog.check(
            service.client.num_open(), terms.tenant, len(first), sum(len(request.prompt) for request in first)
        )
        client.begin(len(first), wanted.prompt_tokens)
        try:
            done = await self._compute(wanted, most, receive)
        finally:
            client.end(len(first))
        if done is not None:
            await self._send(wanted, *done, send, headers)

    async def _wanted(self, maker: JobMaker, body: EmbeddingBody, terms: Terms) -> Wanted:
        service = self._service
        maker.check_model(body.model)
        ready = service.client.ready
        if ready is None:
            raise ApiError("The engine is being started again; try again in a moment.", status=503, code="restarting")
        _check_dimensions(body.dimensions, ready.info)
        if body.priority and service.engine.scheduler.order != "priority":
            raise ApiError("priority needs a server with --scheduling-policy priority; leave it out.", param="priority")
        prompts = await _prompts(body.input, maker, ready.info.num_tokens, ready.max_model_len, service.config)
        deadline = None if body.deadline_ms is None else terms.arrived + body.deadline_ms / 1000
        requests = [
            NewRequest(
                request_id=service.client.new_id(),
                prompt=prompt,
                params=_UNDRAWN,
                seed=0,
                cache_salt=body.cache_salt or "",
                tenant=terms.tenant,
                priority=body.priority or 0,
                deadline=deadline,
                pooling=Pooling(body.pooling or service.config.embedding_pooling),
            )
            for prompt in prompts
        ]
        return Wanted(requests, body.dimensions, body.encoding_format == "base64")

    async def _compute(self, wanted: Wanted, most: int, receive: Receive) -> tuple[list[bytes], int] | None:
        """Each input's vector as JSON, and the cached tokens of all; None where the client has gone."""
        found: list[bytes] = []
        cached = 0
        for start in range(0, len(wanted.requests), most):
            part = wanted.requests[start : start + most]
            deltas = await self._part(part, receive)
            if deltas is None:
                return None
            for request in part:
                delta = deltas[request.request_id]
                assert delta.vector is not None
                found.append(_written(unit(delta.vector, wanted.dimensions), wanted.base64))
                cached += delta.cached_tokens or 0
                await asyncio.sleep(0)  # others' tokens do not wait for all vectors
        return found, cached

    async def _part(self, requests: Sequence[NewRequest], receive: Receive) -> dict[int, TokenDelta] | None:
        """The final delta of each request, sent together."""
        service = self._service
        service.backlog.enter(requests)
        stream = service.client.submit(requests)
        watcher = asyncio.create_task(watch(receive, stream))
        finals: dict[int, TokenDelta] = {}
        try:
            while len(finals) < len(requests):
                batch = await stream.next()
                if not batch:
                    return None
                for delta in batch:
                    if delta.finish in (FinishReason.ERROR, FinishReason.ABORT):
                        raise failure(delta.error or "The request was aborted.", delta.code, [delta])
                    finals[delta.request_id] = delta
                    service.metrics.finished("length")
            return finals
        finally:
            stream.close()
            service.backlog.leave(requests)
            watcher.cancel()
            for _ in range(len(requests) - len(finals)):
                service.metrics.finished("abort")

    async def _send(self, wanted: Wanted, vectors: list[bytes], cached: int, send: Send, headers: Headers) -> None:
        count = wanted.prompt_tokens
        self._service.metrics.replied(count, cached, 0)
        data = [
            {"object": "embedding", "index": index, "embedding": msgspec.Raw(vector)}
            for index, vector in enumerate(vectors)
        ]
        usage = {
            "prompt_tokens": count,
            "total_tokens": count,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        body = {"object": "list", "data": data, "model": self._service.model_name, "usage": usage}
        await send_json(send, body, headers)


def _written(values: array[float], as_base64: bool) -> bytes:
    if as_base64:
        return msgspec.json.encode(base64.b64encode(values.tobytes()).decode("ascii"))
    return msgspec.json.encode(values.tolist())


def _check_dimensions(dimensions: int | None, info: ModelInfo) -> None:
    if dimensions is not None and dimensions > info.hidden_size:
        raise ApiError(
            f"dimensions is {dimensions}, and this model's vectors have {info.hidden_size}; use fewer or leave it out.",
            param="dimensions",
        )


async def _prompts(given: Any, maker: JobMaker, num_tokens: int, longest: int, config: ServerConfig) -> list[list[int]]:
    """The inputs as token ids, bounded before they are tokenised and after."""
    if isinstance(given, str):
        inputs: list[Any] = [given]
    elif isinstance(given, list) and given:
        inputs = [given] if type(given[0]) is int else given
    else:
        raise ApiError(_INPUT, param="input")
    if len(inputs) > config.max_embedding_inputs:
        raise ApiError(f"input may hold {config.max_embedding_inputs} texts at most.", param="input")
    left = config.max_request_tokens
    prompts = []
    for number, one in enumerate(inputs):
        if isinstance(one, str):
            encode = maker.encode
            ids = encode(one, "input") if len(one) < LONG_TEXT else await asyncio.to_thread(encode, one, "input")
            if number % 64 == 63:
                await asyncio.sleep(0)
        elif isinstance(one, list):
            ids = _checked_ids(one, num_tokens)
        else:
            raise ApiError(_INPUT, param="input")
        if not ids:
            raise ApiError("input holds an empty text; send at least one token.", param="input")
        if len(ids) > longest:
            raise ApiError(
                f"An input has {len(ids)} tokens, and it may have {longest}; shorten it.",
                param="input",
                code="context_length_exceeded",
            )
        left -= len(ids)
        if left < 0:
            raise ApiError(
                f"All inputs together may have {config.max_request_tokens} tokens; send fewer at once.", param="input"
            )
        prompts.append(ids)
    return prompts


def _checked_ids(ids: list[Any], num_tokens: int) -> list[int]:
    for token in ids:
        if type(token) is not int or not 0 <= token < num_tokens:
            raise ApiError(
                f"input must be text, or token ids that are integers from 0 to {num_tokens - 1}.", param="input"
            )
    return ids
