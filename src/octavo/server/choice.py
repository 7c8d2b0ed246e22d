"""One choice of an answer: deltas in, pieces of text out.

Owns the choice's detokeniser, its stop text, what takes its text apart, and its count of tokens. Life: `feed` for each
delta until it returns a piece with `finish_reason` or `error`; then nothing more. Text that completes a stop string
ends the choice here (so does the only call where there may be but one), and the caller aborts the request in the
engine. Tokens after that one count neither in usage nor in logprobs.
`feed` does not know whether the answer is streamed, so the joined stream equals the body.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.engine.detokenizer import Detokenizer, TokenBytes
from octavo.server.params import TextOptions
from octavo.server.prompt_told import NOTHING_TOLD, Told
from octavo.server.stops import StopMatcher
from octavo.server.tools.parser import Delta
from octavo.server.tools.parts import AnswerParts
from octavo.types import ErrorCode, FinishReason, TokenDelta, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token with its log-probabilities, and where its text begins in the choice's text."""

    token: int
    logprobs: TokenLogprobs | None
    """None: a prompt's first token has none."""
    offset: int


@dataclass(slots=True)
class Piece:
    """What one delta adds to a choice."""

    text: str = ""
    delta: Delta | None = None
    """The text taken apart, where parts are looked for."""
    entries: list[TokenEntry] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, TokenLogprobs | None]] | None = None
    """Of every prompt token, in the first piece, where asked for."""
    finish_reason: str | None = None
    error: str | None = None
    code: ErrorCode | None = None


class Choice:
    """State of one choice."""

    __slots__ = (
        "_decoded",
        "_detokenizer",
        "_options",
        "_parts",
        "_prompt",
        "_stops",
        "accepted_tokens",
        "cached_tokens",
        "completion_tokens",
        "done",
        "drafted_tokens",
        "index",
        "logprob_sum",
        "started",
        "stopped_by_text",
    )

    def __init__(
        self,
        index: int,
        tokens: TokenBytes,
        options: TextOptions,
        parts: AnswerParts | None = None,
        prompt: Told = NOTHING_TOLD,
    ) -> None:
        """parts: what takes the text apart; None: it is content. prompt: what the answer tells of it."""
        self.index = index
        self._parts = parts
        self._prompt: Told | None = prompt
        """None once it is told."""
        self._options = options
        self._detokenizer = Detokenizer(tokens, options.skip_special)
        self._stops = StopMatcher(options.stops, options.include_stop)
        self._decoded = len(prompt.text)
        self.completion_tokens = 0
        self.logprob_sum = 0.0
        """Of the tokens so far, where the engine tells log-probabilities."""
        self.cached_tokens = 0
        self.drafted_tokens = 0
        """Draft tokens that the engine checked."""
        self.accepted_tokens = 0
        """Of those, the ones that are among the completion's tokens."""
        self.started = False
        """The first piece was sent (kept by the stream)."""
        self.done = False
        self.stopped_by_text = False
        """The engine still runs the request: abort it."""

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens of the thoughts; None where they are not looked for."""
        return None if self._parts is None else self._parts.reasoning_tokens

    def feed(self, delta: TokenDelta) -> Piece:
        """The delta's text, entries and end; the prompt's before them."""
        before = self.completion_tokens
        piece = self._feed(delta, self._begin(delta))
        self.drafted_tokens += delta.drafted
        self.accepted_tokens += min(delta.accepted, self.completion_tokens - before)
        if self._parts is not None:
            self._take_apart(self._parts, piece)
        return piece

    def _begin(self, delta: TokenDelta) -> Piece:
        """With what is told of the prompt, once that is complete."""
        if self._prompt is None:
            return Piece()
        self._prompt.collect(delta.prompt_logprobs or ())
        failed = delta.finish in (FinishReason.ERROR, FinishReason.ABORT)
        if failed or not (delta.tokens or delta.finish):
            return Piece()
        prompt, self._prompt = self._prompt, None
        entries = [TokenEntry(*entry) for entry in prompt.entries()]
        return Piece(prompt.text, entries=entries, prompt_logprobs=prompt.prompt_logprobs())

    def _take_apart(self, parts: AnswerParts, piece: Piece) -> None:
        if self.done:
            parts.finish(self.completion_tokens)
            if piece.finish_reason is not None and parts.calls:
                piece.finish_reason = "tool_calls"
        piece.delta = parts.take()

    def _feed(self, delta: TokenDelta, piece: Piece) -> Piece:
        if delta.cached_tokens is not None:
            self.cached_tokens = delta.cached_tokens
        last = len(delta.tokens) - 1
        for i, token in enumerate(delta.tokens):
            self._count(piece, token, delta.logprobs[i] if delta.logprobs else None)
            ends_here = i == last and delta.finish is FinishReason.STOP
            text = self._last_text(token) if ends_here else self._detokenizer.push(token)
            if text and self._add(piece, text):
                return piece
        if delta.finish is not None:
            self._finish(piece, delta)
        return piece

    def _count(self, piece: Piece, token: int, logprobs: TokenLogprobs | None) -> None:
        self.completion_tokens += 1
        if logprobs is None:
            return
        self.logprob_sum += logprobs.logprob
        if self._options.logprobs is not None:
            piece.entries.append(TokenEntry(token, logprobs, self._decoded))

    def _last_text(self, token: int) -> str:
        """The text of the token that ended the request: only where asked for."""
        return self._detokenizer.push(token) if self._options.include_stop else ""

    def _add(self, piece: Piece, text: str) -> bool:
        """Adds decoded text; True when it completes a stop string, which ends the choice."""
        self._decoded += len(text)
        if self.completion_tokens < self._options.min_tokens:
            sent, found = text, False
        else:
            sent, found = self._stops.push(text)
        self._say(piece, sent)
        found = found or (self._parts is not None and self._parts.ended)
        if found:
            piece.finish_reason = "stop"
            self.done = True
            self.stopped_by_text = True
        return found

    def _say(self, piece: Piece, text: str) -> None:
        piece.text += text
        if self._parts is not None:
            self._parts.push(text, self.completion_tokens)

    def _finish(self, piece: Piece, delta: TokenDelta) -> None:
        self.done = True
        if delta.finish in (FinishReason.ERROR, FinishReason.ABORT):
            self._say(piece, self._stops.flush())
            piece.error = delta.error or "the request was aborted"
            piece.code = delta.code
            return
        tail = self._detokenizer.finish()
        if tail and self._add(piece, tail):
            self.stopped_by_text = False
            return
        self._say(piece, self._stops.flush())
        piece.finish_reason = "length" if delta.finish is FinishReason.LENGTH else "stop"
