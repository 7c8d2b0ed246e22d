"""The API called from inside this process: the server's own routes without a socket, so that a body means the same.

Owns nothing but the application around a `Service`, whose life is the caller's. A call that is cancelled is a client
that has gone: its requests are aborted in the engine. There is no off switch.
"""

from __future__ import annotations

import asyncio

from octavo.server.app import create_app
from octavo.server.body import Message, Scope
from octavo.server.service import Service

_HTTP = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": "POST"}


class LocalApi:
    """See the module. Belongs to the service's event loop."""

    def __init__(self, service: Service) -> None:
        self._app = create_app(service)

    async def post(self, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
        """The status and the body that the server answers. request_id: printable, at most 128 characters."""
        scope: Scope = {
            **_HTTP,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode("ascii"))],
            "client": None,
            "server": None,
            "extensions": {},
        }
        call = _Call(body)
        await self._app(scope, call.receive, call.send)
        assert call.status, "every call is answered"
        return call.status, b"".join(call.parts)


class _Call:
    """Both ends of one call."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.parts: list[bytes] = []

    async def receive(self) -> Message:
        """The body, and then nothing: this client never goes by itself."""
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.parts.append(message.get("body", b""))
