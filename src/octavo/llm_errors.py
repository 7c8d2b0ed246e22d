"""What calls of `LLM` raise besides TypeError and ValueError, which name an argument that cannot work.

All are RuntimeErrors with one sentence. Owns nothing and has no off switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.llm_answers import Completion
    from octavo.types import ErrorCode


class LLMError(RuntimeError):
    """A call that cannot be answered, whatever its arguments; the others below are kinds of it."""


class LLMClosed(LLMError):
    """The LLM was closed before the call, or under it."""


class LLMFailed(LLMError):
    """The engine failed; every open call raises this, and every later one. `__cause__` is what it failed with."""


class RequestFailed(LLMError):
    """The engine ended this request alone, such as one that its queue has no room for."""

    def __init__(self, message: str, code: ErrorCode | None) -> None:
        super().__init__(message)
        self.code = code
        """Where the request itself, the queue or the clock is the reason."""


class StructureError(LLMError):
    """An answer that was to have a structure has none: it was cut, or the model class refuses it."""

    def __init__(self, message: str, completion: Completion) -> None:
        super().__init__(message)
        self.completion = completion
