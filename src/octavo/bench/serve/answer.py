"""What one streamed request gave: moments, counts, text if wanted, and how it failed if it did."""

from __future__ import annotations

from typing import Any

import msgspec


class Answer(msgspec.Struct):
    """Moments are seconds of the monotonic clock. An answer is complete, or has a `failure`, or was `cut` by us."""

    due: float = 0.0
    """When it was to be sent: every latency counts from here."""
    sent: float = 0.0
    """When the client turned to it."""
    times: list[float] = []
    """Arrival of each event that carried text."""
    ended: float = 0.0
    """Arrival of the end marker."""
    status: int = 0
    finish: str | None = None
    prompt_tokens: int | None = None
    """From the server's usage, as the two below."""
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    failure: str | None = None
    """Its kind, one of a few words: see docs/benchmarking.md."""
    detail: str = ""
    cut: bool = False
    """The client closed the connection on purpose."""
    done: bool = False
    """The end marker arrived."""
    asked_prompt: int = 0
    asked_output: int = 0
    pieces: list[str] = []
    """The text, where the client keeps it."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def complete(self) -> bool:
        return self.failure is None and not self.cut

    @property
    def tokens(self) -> int:
        """Output tokens by usage; without usage, the events."""
        return len(self.times) if self.completion_tokens is None else self.completion_tokens

    @property
    def ttft(self) -> float | None:
        """Time to first token: arrival of the first text - due."""
        return self.times[0] - self.due if self.times else None

    @property
    def e2e(self) -> float | None:
        """End to end: arrival of the last text - due."""
        return self.times[-1] - self.due if self.times else None

    @property
    def tpot(self) -> float | None:
        """Time per output token: (last text - first text) / (output tokens - 1)."""
        if len(self.times) < 2 or self.tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.tokens - 1)

    @property
    def longest_gap(self) -> float | None:
        """Between two events that carried text."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=None)

    def fail(self, kind: str, detail: str) -> None:
        """The first failure stands."""
        if self.failure is None:
            self.failure, self.detail = kind, detail[:500]


# --- what is read of an event ---------------------------------------------------------------------


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Any = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def said(self) -> str:
        """Text of any kind; a piece of a tool call counts as text."""
        if self.text:
            return self.text
        delta = self.delta
        if delta is None:
            return ""
        said = delta.content or delta.reasoning_content or delta.reasoning or ""
        return said or (str(delta.tool_calls) if delta.tool_calls else "")


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Event(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


decode_event = msgspec.json.Decoder(Event).decode
