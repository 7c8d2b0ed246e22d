"""Tokens to text, one token at a time and byte exact.

Owns one request's decoder state. Tokens become bytes, and bytes go through an incremental UTF-8 decoder: the start
of a character that later bytes may complete is held back; bytes that can never be part of a character become U+FFFD,
once for each longest invalid run start, as `bytes.decode(errors="replace")` does. So the joined pieces, `finish()`
included, equal the decoded whole.
"""

from __future__ import annotations

import codecs
from typing import Protocol

_DECODER = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """The part of a tokeniser that decoding needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """The token's raw bytes; empty for ids that the tokeniser does not know."""
        ...

    def is_special(self, token_id: int) -> bool:
        """A control token, such as the end of a turn."""
        ...


class Detokenizer:
    """Incremental text of one request."""

    __slots__ = ("_decoder", "_skip_special", "_tokens")

    def __init__(self, tokens: TokenBytes, skip_special: bool = True) -> None:
        self._tokens = tokens
        self._skip_special = skip_special
        self._decoder = _DECODER("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes."""
        if self._skip_special and self._tokens.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokens.token_bytes(token_id))

    def finish(self) -> str:
        """What was held back: the start of a character that never came."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text
