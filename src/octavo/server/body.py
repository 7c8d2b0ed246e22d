"""A request's body: read within limits of size, time and all bodies' memory, parsed as strict JSON.

Strict: UTF-8, one object, no duplicate keys, finite numbers, no lone surrogates, bounded nesting and number of lists
and objects, both of which are counted before anything is built. Every refusal is an ApiError that names the field
where there is one.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from octavo.config import ServerConfig
from octavo.server.errors import ApiError, clip

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_LIMITS = ServerConfig()
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{},:"'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_GZIP = b"\x1f\x8b"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class _NonFinite:
    """Stands for NaN, Infinity or a number beyond float64 until its field is known."""


class _Parser:
    """json with duplicate keys refused and non-finite numbers marked."""

    def __init__(self) -> None:
        self.saw_non_finite = False

    def parse(self, text: str) -> Any:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=self._constant, parse_float=self._float)

    def _constant(self, name: str) -> _NonFinite:
        self.saw_non_finite = True
        return _NonFinite()

    def _float(self, digits: str) -> float | _NonFinite:
        value = float(digits)
        return value if math.isfinite(value) else self._constant(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ApiError(f"The field {clip(key, 60)!r} is given twice.", param=key)
            seen.add(key)
    return result


class Buffered:
    """Bytes of all bodies that are being read and parsed."""

    def __init__(self) -> None:
        self.bytes = 0


async def read_body(scope: Scope, receive: Receive, limits: ServerConfig, all_bodies: Buffered) -> bytes:
    """The whole body, which counts in `all_bodies` until the caller takes it off; 413 as soon as it is too large."""
    limit = limits.max_body_bytes
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise _compressed()
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limit:
            raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                all_bodies.bytes += len(part)
                if size > limit:
                    raise _too_large(limit)
                if all_bodies.bytes > limits.max_buffered_bytes:
                    raise ApiError(
                        "Too many large bodies are being read; try again in a moment.", status=503, code="full"
                    )
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as error:
        all_bodies.bytes -= size
        raise ApiError(f"The body did not come within {limits.body_seconds:g} seconds.", status=408) from error
    except BaseException:
        all_bodies.bytes -= size
        raise


def _compressed() -> ApiError:
    return ApiError("The body is compressed; send it as plain JSON, without Content-Encoding.", status=415)


def _too_large(limit: int) -> ApiError:
    return ApiError(f"The body is over the limit of {limit} bytes; send less.", status=413)


def check_structure(body: bytes, limits: ServerConfig = _LIMITS) -> None:
    """Nesting, and the number of lists, objects, keys and values, counted without building any of them.

    What is no JSON may pass; the parser is next.
    """
    if (
        body.count(b"[") + body.count(b"{") <= limits.max_json_depth
        and body.count(b":") <= limits.max_json_containers
        and body.count(b",") < limits.max_json_values
    ):
        return
    # Without escaped characters every quote opens or closes a string, and what lies between two of them is text.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_STRUCTURE)
    structure = b"".join(plain.split(b'"')[::2])
    _bound(structure.count(b",") + 1, limits.max_json_values, "values")
    _bound(structure.count(b":"), limits.max_json_containers, "keys")
    structure = structure.translate(_ONE_KIND, b",:")
    _bound(structure.count(b"["), limits.max_json_containers, "lists and objects")
    for _ in range(limits.max_json_depth):
        shorter = structure.replace(b"[]", b"")
        if len(shorter) == len(structure):
            break
        structure = shorter
    if b"[]" in structure or structure.count(b"[") > limits.max_json_depth:
        raise ApiError(f"The body is nested too deep; {limits.max_json_depth} levels at most would work.")


def _bound(count: int, most: int, what: str) -> None:
    if count > most:
        raise ApiError(f"The body holds more than {most} {what}; send fewer in one request.")


def parse_object(body: bytes, limits: ServerConfig = _LIMITS) -> dict[str, Any]:
    """The body's one JSON object."""
    if body.startswith(_GZIP):
        raise _compressed()
    check_structure(body, limits)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(f"The body is not UTF-8: byte {error.start} is invalid.") from error
    parser = _Parser()
    try:
        value = parser.parse(text)
    except json.JSONDecodeError as error:
        raise ApiError(f"The body is not JSON: {error.msg} at character {error.pos}.") from error
    except RecursionError as error:
        raise ApiError("The body is nested too deep; a few levels are all that any field needs.") from error
    except ValueError as error:
        raise ApiError("The body holds a number with too many digits.") from error
    if not isinstance(value, dict):
        raise ApiError("The body must be a JSON object.")
    if parser.saw_non_finite:
        _refuse(value, lambda item: isinstance(item, _NonFinite), "must hold finite numbers")
    if _SURROGATE_ESCAPE.search(body) is not None:
        _refuse(value, _lone_surrogate, "holds half of a surrogate pair, which is no character")
    return value


def _lone_surrogate(item: Any) -> bool:
    if isinstance(item, str):
        try:
            item.encode("utf-8")
        except UnicodeEncodeError:
            return True
    return False


def _refuse(value: dict[str, Any], wrong: Callable[[Any], bool], problem: str) -> None:
    """Raises for the first field that holds a wrong item at any depth."""
    for field, content in value.items():
        stack: list[Any] = [field, content]
        while stack:
            item = stack.pop()
            if wrong(item):
                name = clip(field, 60)
                raise ApiError(f"The field {name!r} {problem}.", param=name)
            if isinstance(item, list):
                stack.extend(item)
            elif isinstance(item, dict):
                stack.extend(item)
                stack.extend(item.values())
