"""Log-probabilities in the API's two shapes.

A token's `bytes` are its raw bytes. A token that is no whole UTF-8 text is named by its bytes, as in
`bytes:\\xf0\\x9f`, so different tokens keep different names. Numbers are finite: minus infinity is told as `LOWEST`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from octavo.engine.detokenizer import TokenBytes
from octavo.types import TokenLogprobs

LOWEST = -9999.0


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST


def token_name(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def prompt_entries(
    tokens: TokenBytes, prompt: Sequence[tuple[int, TokenLogprobs | None]]
) -> list[dict[str, dict[str, Any]] | None]:
    """`prompt_logprobs`: a token id's log-probability, rank and text, the prompt's own token first."""
    return [None if logprobs is None else _prompt_entry(tokens, token, logprobs) for token, logprobs in prompt]


def _prompt_entry(tokens: TokenBytes, token: int, logprobs: TokenLogprobs) -> dict[str, dict[str, Any]]:
    ranked = {token: (logprobs.logprob, logprobs.rank)}
    for place, (top, value) in enumerate(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True), 1):
        ranked.setdefault(top, (value, place))
    return {
        str(each): {
            "logprob": finite(value),
            "rank": place,
            "decoded_token": token_name(tokens.token_bytes(each)),
        }
        for each, (value, place) in ranked.items()
    }


def chat_entry(tokens: TokenBytes, token: int, logprobs: TokenLogprobs) -> dict[str, Any]:
    """One element of choices[].logprobs.content."""
    entry = _chat_token(tokens, token, logprobs.logprob)
    entry["top_logprobs"] = [
        _chat_token(tokens, top, value) for top, value in zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)
    ]
    return entry


def _chat_token(tokens: TokenBytes, token: int, logprob: float) -> dict[str, Any]:
    raw = tokens.token_bytes(token)
    return {"token": token_name(raw), "logprob": finite(logprob), "bytes": list(raw)}


class CompletionLogprobs:
    """The parallel lists of choices[].logprobs in a completion (or in one chunk of its stream)."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.token_logprobs: list[float | None] = []
        self.top_logprobs: list[dict[str, float] | None] = []
        self.text_offset: list[int] = []

    def add(self, tokens: TokenBytes, token: int, logprobs: TokenLogprobs | None, offset: int) -> None:
        """Without log-probabilities (a prompt's first token) their places hold null."""
        name = token_name(tokens.token_bytes(token))
        self.tokens.append(name)
        self.text_offset.append(offset)
        if logprobs is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        top = {
            token_name(tokens.token_bytes(top_id)): finite(value)
            for top_id, value in zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)
        }
        top.setdefault(name, finite(logprobs.logprob))
        self.token_logprobs.append(finite(logprobs.logprob))
        self.top_logprobs.append(top)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
