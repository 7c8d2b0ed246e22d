"""What every POST endpoint shares: how a request that fails is answered, and that each is counted.

Life of a request: `answer` reads, checks, computes and sends; an ApiError before the first byte becomes its response,
an error behind it ends a stream with an error event. A client that has gone gets nothing. There is no off switch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from octavo.server.body import ClientGone, Message, Receive, Scope, Send, read_body
from octavo.server.errors import ApiError
from octavo.server.formats import DONE
from octavo.server.gate import client_of
from octavo.server.job import JobMaker
from octavo.server.quota import Client
from octavo.server.respond import Headers, request_id, send_error
from octavo.server.service import STOPPING, Service
from octavo.server.terms import Terms, read_terms

logger = logging.getLogger(__name__)

UNEXPECTED = "The server failed on this request; its log says why."


@dataclass(frozen=True)
class Incoming:
    """A request that was counted, admitted and read."""

    client: Client
    terms: Terms
    maker: JobMaker
    body: bytes


class Endpoint(ABC):
    """A plain ASGI application."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers, arrived: float) -> None:
        """The whole response. headers: those that every response has. arrived: monotonic time."""

    @asynccontextmanager
    async def incoming(self, scope: Scope, receive: Receive) -> AsyncIterator[Incoming]:
        """Refuses before it reads; while the block runs, the body counts among the buffered bytes."""
        service = self._service
        client = client_of(scope)
        client.arrive()
        terms = read_terms(scope, service.config, client.tenant)
        maker = service.admit(terms.tenant)
        body = await read_body(scope, receive, service.config, service.buffered)
        try:
            yield Incoming(client, terms, maker, body)
        finally:
            service.buffered.bytes -= len(body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.monotonic()
        headers: Headers = [(b"x-request-id", request_id(scope))]
        recorder = _StatusRecorder(send)
        try:
            await self.answer(scope, receive, recorder.send, headers, arrived)
        except ClientGone:
            return
        except ApiError as error:
            await recorder.fail(error, headers)
        except asyncio.CancelledError:
            if not self._service.draining:
                raise
            await recorder.fail(ApiError(STOPPING, status=503), headers)  # a body that did not come in time
        except Exception:
            logger.exception("a request failed in the server")
            await recorder.fail(ApiError(UNEXPECTED, status=500), headers)
        finally:
            if recorder.status:
                self._service.metrics.responded(scope["path"], recorder.status)


class _StatusRecorder:
    """Remembers how far the response that passes through has come."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._complete = False
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not message.get("more_body", False):
            self._complete = True
        await self._send(message)

    async def fail(self, error: ApiError, headers: Headers) -> None:
        """An error response; where a stream has begun, an error event and its end."""
        if not self.status:
            await send_error(self.send, error, headers)
        elif not self._complete:
            await self.send({"type": "http.response.body", "body": b"data: " + error.body() + b"\n\n" + DONE})
