"""The HTTP application: routes, and the two generating endpoints.

Life of a generating request: read and parse the body -> check it against model and configuration -> submit ->
answer (answer.py). Everything is checked before the first byte of a response. `x-request-id` is taken from the
request where it is printable and short, else made here, and comes back with every response.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.observability.metrics import CONTENT_TYPE
from octavo.server.answer import Responder, watch
from octavo.server.body import Receive, Scope, Send
from octavo.server.cache_admin import cache_routes
from octavo.server.docs_page import docs_page
from octavo.server.embeddings import EmbeddingsEndpoint
from octavo.server.endpoint import UNEXPECTED, Endpoint
from octavo.server.errors import ApiError, error_body
from octavo.server.formats import ChatFormat, CompletionFormat
from octavo.server.gate import Gate
from octavo.server.job import Job, JobMaker
from octavo.server.openapi import document
from octavo.server.protocol import parse_chat, parse_completion
from octavo.server.quota import Client
from octavo.server.respond import Headers, request_id
from octavo.server.service import Service
from octavo.server.terms import Terms
from octavo.server.tokenization import DetokenizeEndpoint, TokenizeEndpoint

logger = logging.getLogger(__name__)


class GenerateEndpoint(Endpoint):
    """POST /v1/chat/completions or /v1/completions."""

    @abstractmethod
    async def make_job(self, maker: JobMaker, body: bytes, terms: Terms) -> Job:
        """The checked body as requests for the engine."""

    @abstractmethod
    def shape(self, job: Job) -> ChatFormat | CompletionFormat:
        """How the answer is written."""

    async def answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers, arrived: float) -> None:
        service = self._service
        async with self.incoming(scope, receive) as asked:
            with service.backlog.making(service.client.num_open(), asked.terms.tenant):
                job = await self.make_job(asked.maker, asked.body, asked.terms)
        client = asked.client
        service.check_room(job)
        client.begin(len(job.requests), sum(job.prompt_tokens))
        try:
            await self._generate(job, client, scope, receive, send, headers, arrived)
        finally:
            client.end(len(job.requests))

    async def _generate(
        self, job: Job, client: Client, scope: Scope, receive: Receive, send: Send, headers: Headers, arrived: float
    ) -> None:
        service = self._service
        assert service.text is not None
        responder = Responder(job, self.shape(job), service.text.tokens, service.metrics, arrived, client.spend)
        service.backlog.enter(job.requests)
        deltas = service.client.submit(job.requests)
        watcher = asyncio.create_task(watch(receive, deltas))
        task = asyncio.current_task()
        assert task is not None
        try:
            if job.stream:
                await responder.stream(deltas, send, headers, service.stalled)
            else:
                await responder.body(deltas, send, headers)
        except asyncio.CancelledError:
            if not service.stalled.was_ended(task):
                raise
            logger.warning("a client read nothing for too long; its request was ended")
            scope["extensions"]["octavo.abort"]()
        finally:
            deltas.close()
            service.backlog.leave(job.requests)
            watcher.cancel()
            for choice in job.choices.values():
                if not choice.done:
                    service.metrics.finished("abort")


class ChatEndpoint(GenerateEndpoint):
    async def make_job(self, maker: JobMaker, body: bytes, terms: Terms) -> Job:
        return await maker.chat(parse_chat(body, self._service.config), terms)

    def shape(self, job: Job) -> ChatFormat:
        assert self._service.text is not None
        return ChatFormat(job, self._service.model_name, self._service.text.tokens)


class CompletionEndpoint(GenerateEndpoint):
    async def make_job(self, maker: JobMaker, body: bytes, terms: Terms) -> Job:
        return await maker.completion(parse_completion(body, self._service.config), terms)

    def shape(self, job: Job) -> CompletionFormat:
        assert self._service.text is not None
        return CompletionFormat(job, self._service.model_name, self._service.text.tokens)


def create_app(service: Service) -> Gate:
    """The application around a service, which it starts and closes."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.close()

    routes = [
        Route("/v1/chat/completions", ChatEndpoint(service), methods=["POST"]),
        Route("/v1/completions", CompletionEndpoint(service), methods=["POST"]),
        Route("/v1/embeddings", EmbeddingsEndpoint(service), methods=["POST"]),
        Route("/tokenize", TokenizeEndpoint(service), methods=["POST"]),
        Route("/detokenize", DetokenizeEndpoint(service), methods=["POST"]),
        *_small_routes(service),
        *cache_routes(service),
    ]
    handlers: dict[Any, Any] = {HTTPException: _http_error, ApiError: _api_error, Exception: _unexpected_error}
    application = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return Gate(application, service.config, service.access, service.metrics.responded)


def _small_routes(service: Service) -> list[Route]:
    def answer(request: Request, value: object, status: int = 200) -> Response:
        headers = {"x-request-id": request_id(request.scope).decode("ascii")}
        return Response(msgspec.json.encode(value), status, headers, "application/json")

    async def health(request: Request) -> Response:
        return answer(request, {"status": service.client.health().value}, 200 if service.alive() else 503)

    async def ready(request: Request) -> Response:
        status = service.status()
        body = {"status": status, "message": service.doing} if status == "starting" else {"status": status}
        return answer(request, body, 200 if status == "ready" else 503)

    async def metrics(request: Request) -> Response:
        headers = {"x-request-id": request_id(request.scope).decode("ascii")}
        return Response(service.metrics.text(), 200, headers, CONTENT_TYPE)

    async def models(request: Request) -> Response:
        return answer(request, {"object": "list", "data": [_model(service)] if service.model_name else []})

    async def model(request: Request) -> Response:
        if not service.model_name or request.path_params["name"] != service.model_name:
            raise ApiError(
                "This model is not served here; /v1/models lists what is.",
                param="model",
                status=404,
                code="model_not_found",
            )
        return answer(request, _model(service))

    async def openapi(request: Request) -> Response:
        return answer(request, document(service.sampling))

    async def docs(request: Request) -> Response:
        return docs_page({"x-request-id": request_id(request.scope).decode("ascii")})

    return [
        Route("/docs", docs),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/openapi.json", openapi),
    ]


def _model(service: Service) -> dict[str, object]:
    ready = service.client.ready
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "octavo",
        "max_model_len": None if ready is None else ready.max_model_len,
    }


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404 and message == "Not Found":
        message = "There is nothing at this path; /openapi.json lists the paths."
    headers = {**(error.headers or {}), "x-request-id": request_id(request.scope).decode("ascii")}
    return Response(error_body(message, error.status_code), error.status_code, headers, "application/json")


async def _api_error(request: Request, error: Exception) -> Response:
    """What a small route refuses."""
    assert isinstance(error, ApiError)
    headers = {"x-request-id": request_id(request.scope).decode("ascii")}
    return Response(error.body(), error.status, headers, "application/json")


async def _unexpected_error(request: Request, error: Exception) -> Response:
    headers = {"x-request-id": request_id(request.scope).decode("ascii")}
    body = error_body(UNEXPECTED, 500)
    return Response(body, 500, headers, "application/json")
