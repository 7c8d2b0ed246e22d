"""What every response needs: the request's id, and errors as the API tells them."""

from __future__ import annotations

import re
import uuid

import msgspec

from octavo.server.body import Scope, Send
from octavo.server.errors import ApiError

Headers = list[tuple[bytes, bytes]]

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_JSON = (b"content-type", b"application/json")


def request_id(scope: Scope) -> bytes:
    """The caller's id of the request where it has a usable one; the same each time it is asked for."""
    known = scope.get("octavo.request_id")
    if known is None:
        known = next(
            (
                bytes(value)
                for name, value in scope["headers"]
                if name == b"x-request-id" and _REQUEST_ID.fullmatch(value)
            ),
            None,
        )
        known = scope["octavo.request_id"] = known or b"req-" + uuid.uuid4().hex.encode()
    return bytes(known)


async def send_json(send: Send, value: object, headers: Headers) -> None:
    """The whole response."""
    body = msgspec.json.encode(value)
    start = [_JSON, (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError, headers: Headers) -> None:
    """The whole response."""
    body = error.body()
    extra = [(b"retry-after", str(error.retry_after).encode())] if error.status in (429, 503) else []
    start = {
        "type": "http.response.start",
        "status": error.status,
        "headers": [_JSON, (b"content-length", str(len(body)).encode()), *extra, *headers],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
