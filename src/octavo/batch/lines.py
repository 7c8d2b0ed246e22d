"""What a line of the input asks for: from its bytes to a call of the API.

A line is one of: a request of the API's own fields (`prompt`, `messages` or `input`, beside sampling fields and an
`id`), a line of an OpenAI batch file (`custom_id`, `method`, `url`, `body`), or a bare prompt (a JSON string, or a list
of token ids). Fields are checked by the server's endpoint, so that a line means what a request means; here is decided
which endpoint that is, and what the flags fill in. A line without a seed gets one from `--seed` and its number, so that
it draws the same whenever and beside whatever it runs. Owns no state and has no off switch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from octavo.config import ServerConfig
from octavo.server.body import parse_object
from octavo.server.errors import ApiError, clip

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
URLS = (CHAT, COMPLETION)
"""What a batch line may call."""
_KINDS = {"messages": CHAT, "prompt": COMPLETION}
"""The field that tells what a line of our own form asks for."""
_ENVELOPE = ("custom_id", "method", "url", "body")
_ID_CHARACTERS = 512
_ENVELOPE_BYTES = 64 * 1024
"""What a batch line may have around its body."""
_EXAMPLE = '{"prompt": "Once upon a time"} or {"messages": [{"role": "user", "content": "hi"}]}'


@dataclass(frozen=True)
class Defaults:
    """What the flags fill in where a line leaves it out."""

    seed: int = 0
    max_tokens: int | None = None
    temperature: float | None = None
    chat: bool = False
    """Text prompts are a user's message."""


@dataclass(frozen=True)
class Call:
    """One line's call of the API."""

    line: int
    """From 1."""
    name: str | int | None
    """The line's own id."""
    batch: bool
    """The answer is in the form of OpenAI's batch files."""
    url: str
    body: bytes


class LineError(Exception):
    """A line that asks for nothing that could be called; the message is one sentence."""

    def __init__(
        self, message: str, code: str = "invalid_line", name: str | int | None = None, batch: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.name = name
        self.batch = batch


def line_bytes(config: ServerConfig) -> int:
    """The longest line."""
    return config.max_body_bytes + _ENVELOPE_BYTES


def read_call(raw: bytes, line: int, defaults: Defaults, config: ServerConfig) -> Call:
    """The call that a line asks for. Raises LineError."""
    value = _parse(raw, config)
    batch = "url" in value or "body" in value or "method" in value
    name = _name(value, batch)
    try:
        url, body = _batch_call(value) if batch else _own_call(value, defaults)
        _fill_in(url, body, line, defaults)
        return Call(line, name, batch, url, json.dumps(body, ensure_ascii=False).encode())
    except LineError as error:
        raise LineError(error.message, error.code, name, batch) from None


def _parse(raw: bytes, config: ServerConfig) -> dict[str, Any]:
    """The line as an object; a bare prompt is one with that prompt."""
    # An envelope is one level, and a few keys, around what may be as large as a body.
    limits = replace(
        config, max_json_depth=config.max_json_depth + 1, max_json_containers=config.max_json_containers + 16
    )
    text = raw.strip()
    if text[:1] in (b'"', b"["):
        text = b'{"prompt":' + text + b"}"
    try:
        value = parse_object(text, limits)
    except ApiError as error:
        message = error.message.replace("The body", "The line", 1)
        if text[:1] != b"{":
            message = f"The line is neither JSON text nor an object; {_EXAMPLE} would work."
        raise LineError(message, error.code or "invalid_line") from error
    return value


def _name(value: dict[str, Any], batch: bool) -> str | int | None:
    """Takes the line's id out of it."""
    if batch:
        field, name = "custom_id", value.get("custom_id")
        if not isinstance(name, str):
            raise LineError("A batch line needs a custom_id that is text.", "invalid_custom_id", batch=True)
    else:
        given = [field for field in ("id", "custom_id") if value.get(field) is not None]
        if len(given) > 1:
            raise LineError("The line has an id and a custom_id; one of them would do.", "invalid_id")
        field = given[0] if given else "id"
        name = value.get(field)
        value.pop("id", None)
        value.pop("custom_id", None)
        if name is None:
            return None
    whole = isinstance(name, int) and not isinstance(name, bool)
    if not (isinstance(name, str) or whole) or len(str(name)) > _ID_CHARACTERS:
        raise LineError(
            f"{field} must be text or an integer, of {_ID_CHARACTERS} characters at most.",
            f"invalid_{field}",
            None,
            batch,
        )
    return name


def _batch_call(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    for field in value:
        if field not in _ENVELOPE:
            raise LineError(
                f"Unknown field {clip(field, 60)!r}; a batch line has custom_id, method, url and body.", "unknown_field"
            )
    if value.get("method", "POST") != "POST":
        raise LineError("method must be POST.", "invalid_method")
    url = value.get("url")
    if url not in URLS:
        shown = clip(url, 60) if isinstance(url, str) else type(url).__name__
        raise LineError(f"url is {shown!r}; {' or '.join(URLS)} would work.", "invalid_url")
    body = value.get("body")
    if not isinstance(body, dict):
        raise LineError("body must be an object, the request's fields.", "invalid_body")
    return url, body


def _own_call(value: dict[str, Any], defaults: Defaults) -> tuple[str, dict[str, Any]]:
    kinds = [field for field in _KINDS if field in value]
    if len(kinds) != 1:
        has = f"has {' and '.join(kinds)}" if kinds else "has no prompt"
        raise LineError(f"The line {has}; one of them, as in {_EXAMPLE}, would work.", "invalid_line")
    if kinds[0] == "prompt" and defaults.chat and isinstance(value["prompt"], str):
        value["messages"] = [{"role": "user", "content": value.pop("prompt")}]
        return CHAT, value
    return _KINDS[kinds[0]], value


def _fill_in(url: str, body: dict[str, Any], line: int, defaults: Defaults) -> None:
    if body.get("stream"):
        raise LineError("A line's answer is written whole; leave stream out.", "unsupported_parameter")
    if body.get("seed") is None:
        body["seed"] = line_seed(defaults.seed, line)
    if defaults.max_tokens is not None and body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        body["max_tokens"] = defaults.max_tokens
    if defaults.temperature is not None and body.get("temperature") is None:
        body["temperature"] = defaults.temperature


def line_seed(seed: int, line: int) -> int:
    """The seed of a line that names none: a signed integer of 64 bits, as the API takes them."""
    digest = hashlib.blake2b(f"octavo run {seed} {line}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
