"""Pins of cached prefixes over HTTP: make one, list them, end one (`octavo cache` talks to this).

    POST   /admin/cache/pins          {"name", "prompt" or "messages", "ttl_seconds", "cache_salt", "tenant"}
    GET    /admin/cache/pins
    DELETE /admin/cache/pins/{name}

The pins themselves are kept in pins.py. Messages stand for the beginning that every conversation has which begins with
them. Who may ask is decided before (gate.py): these paths need the administrator's key.

Off: no `--pin-tokens`: every pin is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.engine.asked import NoAnswer
from octavo.server.body import parse_object, read_body
from octavo.server.errors import ApiError
from octavo.server.job import JobMaker
from octavo.server.limits import MAX_SALT_CHARACTERS
from octavo.server.protocol import check_chat, check_completion, explain
from octavo.server.service import Service
from octavo.server.terms import Terms, read_terms
from octavo.types import NewRequest, PinReply

PATH = "/admin/cache/pins"
MAX_SECONDS = 30 * 24 * 3600.0
_NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class PinBody(msgspec.Struct, forbid_unknown_fields=True):
    """What POST takes."""

    name: str
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    ttl_seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = 3600.0
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARACTERS)] | None = None
    tenant: Annotated[str, Meta(max_length=128)] = ""
    """Whose requests find it: a key's name, or what `--tenant-header` names."""


def cache_routes(service: Service) -> list[Route]:
    """The routes, for the application."""

    async def pins(request: Request) -> Response:
        if request.method == "GET":
            return _answer(await service.pins.pins())
        data = await read_body(request.scope, request.receive, service.config, service.buffered)
        try:
            body = parse_pin(data)
            terms = read_terms(request.scope, service.config, body.tenant)
            prefix = await _prefix(service.admit(terms.tenant), body, terms)
        finally:
            service.buffered.bytes -= len(data)
        return _answer(await service.pins.pin(body.name, prefix, body.ttl_seconds))

    async def unpin(request: Request) -> Response:
        return _answer(await service.pins.unpin(request.path_params["name"]))

    async def guarded(request: Request) -> Response:
        try:
            return await (unpin if "name" in request.path_params else pins)(request)
        except NoAnswer as error:
            return _failure(ApiError(str(error), status=503, code="restarting"))
        except ApiError as error:
            return _failure(error)

    return [
        Route(PATH, guarded, methods=["GET", "POST"]),
        Route(PATH + "/{name}", guarded, methods=["DELETE"]),
    ]


def parse_pin(data: bytes) -> PinBody:
    """The checked body."""
    try:
        body = msgspec.convert(parse_object(data), PinBody)
    except msgspec.ValidationError as error:
        raise explain(str(error)) from None
    if not _NAME.fullmatch(body.name):
        raise ApiError("name must be 1 to 64 letters, digits or any of . _ : -", param="name")
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("A pin needs prompt or messages, and not both.", param="prompt")
    return body


async def _prefix(maker: JobMaker, body: PinBody, terms: Terms) -> NewRequest:
    """A request that computes the prefix."""
    fields = {"max_tokens": 1, "temperature": 0, "cache_salt": body.cache_salt}
    if body.messages is None:
        job = await maker.completion(check_completion({"prompt": body.prompt, **fields}), terms)
        return job.requests[0]
    endings = [
        await maker.chat(check_chat({"messages": [*body.messages, {"role": "user", "content": end}], **fields}), terms)
        for end in ("a", "b")
    ]
    first, second = (job.requests[0] for job in endings)
    return msgspec.structs.replace(first, prompt=shared_beginning(first.prompt, second.prompt))


def shared_beginning(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """The tokens that both begin with."""
    length = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return list(a[:length])


def _answer(reply: PinReply) -> Response:
    if reply.error is not None:
        status = 404 if reply.missing and reply.error.startswith("There is no pin") else 503 if reply.missing else 400
        return _failure(ApiError(reply.error, status=status, code="pin_refused"))
    body = {
        "budget_tokens": reply.budget_tokens,
        "pinned_tokens": reply.pinned_tokens,
        "pins": [
            {"name": pin.name, "tokens": pin.tokens, "seconds_left": round(pin.seconds_left, 1)} for pin in reply.pins
        ],
    }
    return Response(msgspec.json.encode(body), 200, media_type="application/json")


def _failure(error: ApiError) -> Response:
    return Response(error.body(), error.status, media_type="application/json")
