"""Answers as JSON: the chat's shape and the completion's, streamed and whole.

A stream's chunk is three parts: bytes made once for each choice, the text as a JSON string, and bytes made once.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.engine.detokenizer import TokenBytes
from octavo.server.choice import Choice, Piece, TokenEntry
from octavo.server.job import Job
from octavo.server.logprobs import CompletionLogprobs, chat_entry, prompt_entries
from octavo.server.tools.message import MessageParts, delta_fields
from octavo.types import TokenLogprobs

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


def line_safe(events: bytes) -> bytes:
    """Events without the line separators that JSON allows and that many clients split lines at."""
    if events.isascii():
        return events
    for raw, escape in ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085")):
        events = events.replace(raw, escape)
    return events


class Answer:
    """What is collected of one choice for a whole body."""

    __slots__ = ("entries", "finish_reason", "index", "parts", "prompt_logprobs", "text")

    def __init__(self, index: int) -> None:
        self.index = index
        self.text: list[str] = []
        self.entries: list[TokenEntry] = []
        self.finish_reason: str | None = None
        self.parts: MessageParts | None = None
        self.prompt_logprobs: list[tuple[int, TokenLogprobs | None]] | None = None

    def add(self, piece: Piece) -> None:
        if piece.prompt_logprobs is not None:
            self.prompt_logprobs = piece.prompt_logprobs
        self.text.append(piece.text)
        if piece.delta is not None:
            self.parts = self.parts or MessageParts()
            self.parts.add(piece.delta)
        self.entries.extend(piece.entries)
        if piece.finish_reason is not None:
            self.finish_reason = piece.finish_reason


class _Format(ABC):
    """What both shapes share."""

    id_prefix: str
    chunk_object: str
    body_object: str

    def __init__(self, job: Job, model: str, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self._created = job.created
        self._model = model
        head = _encode({"id": self._id, "object": self.chunk_object, "created": self._created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._openings = [self._head + self._opening(choice.index) for choice in job.choices.values()]

    @abstractmethod
    def _opening(self, index: int) -> bytes:
        """A choice's first chunk, without its head."""

    def _event(self, choice: dict[str, Any], more: bytes = b"") -> bytes:
        """more: further fields of the chunk, each with a comma in front."""
        return self._head + _encode(choice) + b"]" + more + b"}\n\n"

    def _prompt_logprobs(self, told: Piece | Answer) -> dict[str, Any]:
        """The field, where it was asked for."""
        if told.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_entries(self._tokens, told.prompt_logprobs)}

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        """The last chunk of a stream that asked for usage: no choices."""
        return self._head + b'],"usage":' + _encode(usage) + b"}\n\n"

    def _body(self, choices: list[dict[str, Any]], usage: dict[str, object], **more: Any) -> bytes:
        return _encode(
            {
                "id": self._id,
                "object": self.body_object,
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "usage": usage,
                **more,
            }
        )


class ChatFormat(_Format):
    """chat.completion and chat.completion.chunk."""

    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"

    _CLOSING = b'},"logprobs":null,"finish_reason":null}]}\n\n'

    def _opening(self, index: int) -> bytes:
        return b'{"index":%d,"delta":{"content":' % index

    def chunk(self, choice: Choice, piece: Piece) -> bytes:
        """Events for a piece: the role first, then text with its log-probabilities, then the end on its own."""
        events = b""
        parts = None if piece.delta is None else delta_fields(piece.delta)
        if not choice.started:
            choice.started = True
            delta = {"role": "assistant", "content": "" if parts is None else None}
            first = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
            more = self._prompt_logprobs(piece)
            events = self._event(first, b"," + _encode(more)[1:-1] if more else b"")
        if piece.entries or parts:
            content = {"content": piece.text} if parts is None else parts
            events += self._event(
                {
                    "index": choice.index,
                    "delta": content,
                    "logprobs": self._logprobs(piece.entries) if piece.entries else None,
                    "finish_reason": None,
                }
            )
        elif piece.text and parts is None:
            events += self._openings[choice.index] + _encode(piece.text) + self._CLOSING
        if piece.finish_reason is not None:
            events += self._event(
                {"index": choice.index, "delta": {}, "logprobs": None, "finish_reason": piece.finish_reason}
            )
        return events

    def body(self, answers: Sequence[Answer], usage: dict[str, object], logprobs: bool) -> bytes:
        return self._body(
            [
                {
                    "index": answer.index,
                    "message": self._message(answer),
                    "logprobs": self._logprobs(answer.entries) if logprobs else None,
                    "finish_reason": answer.finish_reason,
                }
                for answer in answers
            ],
            usage,
            **self._prompt_logprobs(answers[0]),
        )

    @staticmethod
    def _message(answer: Answer) -> dict[str, Any]:
        said = {"content": "".join(answer.text)} if answer.parts is None else answer.parts.fields()
        return {"role": "assistant", **said, "refusal": None}

    def _logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        content = [
            chat_entry(self._tokens, entry.token, entry.logprobs) for entry in entries if entry.logprobs is not None
        ]
        return {"content": content, "refusal": None}


class CompletionFormat(_Format):
    """text_completion, streamed and whole."""

    id_prefix = "cmpl"
    chunk_object = "text_completion"
    body_object = "text_completion"

    _CLOSING = b',"logprobs":null,"finish_reason":null}]}\n\n'

    def _opening(self, index: int) -> bytes:
        return b'{"index":%d,"text":' % index

    def chunk(self, choice: Choice, piece: Piece) -> bytes:
        """Events for a piece: text with its log-probabilities, then the end on its own."""
        choice.started = True
        events = b""
        if piece.entries or piece.prompt_logprobs:
            events = self._event(
                {
                    "index": choice.index,
                    "text": piece.text,
                    "logprobs": self._logprobs(piece.entries) if piece.entries else None,
                    "finish_reason": None,
                    **self._prompt_logprobs(piece),
                }
            )
        elif piece.text:
            events = self._openings[choice.index] + _encode(piece.text) + self._CLOSING
        if piece.finish_reason is not None:
            events += self._event(
                {"index": choice.index, "text": "", "logprobs": None, "finish_reason": piece.finish_reason}
            )
        return events

    def body(self, answers: Sequence[Answer], usage: dict[str, object], logprobs: bool) -> bytes:
        return self._body(
            [
                {
                    "index": answer.index,
                    "text": "".join(answer.text),
                    "logprobs": self._logprobs(answer.entries) if logprobs else None,
                    "finish_reason": answer.finish_reason,
                    **self._prompt_logprobs(answer),
                }
                for answer in answers
            ],
            usage,
        )

    def _logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        lists = CompletionLogprobs()
        for entry in entries:
            lists.add(self._tokens, entry.token, entry.logprobs, entry.offset)
        return lists.as_dict()
