"""Errors as the API tells them: OpenAI's shape, one sentence, small, never echoing the input at length."""

from __future__ import annotations

import msgspec

MAX_MESSAGE = 480
MAX_PARAM = 80


class ApiError(Exception):
    """Ends a request before its first byte with a status and an error body."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        retry_after: int = 1,
    ) -> None:
        """retry_after: seconds, told with 429 and 503."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.retry_after = retry_after

    def body(self) -> bytes:
        return error_body(self.message, self.status, self.param, self.code)


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> bytes:
    """{"error": {...}}, under 1 KB."""
    if status >= 500:
        kind = "server_error"
    elif status == 429:
        kind = "rate_limit_error"
    else:
        kind = "invalid_request_error"
    error = {
        "message": clip(message, MAX_MESSAGE),
        "type": kind,
        "param": None if param is None else clip(param, MAX_PARAM),
        "code": code,
    }
    return msgspec.json.encode({"error": error})


def clip(text: str, limit: int) -> str:
    """At most `limit` characters that can be encoded."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 3] + "..."
