"""A job's answer on the wire: streamed as events, or as one body.

Life of an answer: the first deltas are awaited before the status line, so that a refusal by the engine is an HTTP
error; then deltas become pieces, and pieces are sent until every choice has ended. A stream always ends with
`data: [DONE]`, after an error event too. When the client goes away the requests are aborted at once, streamed or not:
`watch` waits for that in a task of its own. A send that takes longer than `send_seconds`, and one during which more
than `max_queued_tokens` tokens have come, ends the answer and its connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from octavo.engine.detokenizer import TokenBytes
from octavo.engine.streams import DeltaStream
from octavo.observability.metrics import Metrics
from octavo.server.body import Receive, Send
from octavo.server.choice import Piece
from octavo.server.errors import ApiError
from octavo.server.formats import DONE, Answer, ChatFormat, CompletionFormat, line_safe
from octavo.server.job import Job
from octavo.server.respond import Headers
from octavo.types import ErrorCode, FinishReason, TokenDelta

logger = logging.getLogger(__name__)


class StalledSends:
    """Ends answers whose client reads nothing: one timer for all of them, two dictionary entries a send."""

    def __init__(self, seconds: float, max_queued: int) -> None:
        self._seconds = seconds
        self._max_queued = max_queued
        self._since: dict[asyncio.Task[object], tuple[float, DeltaStream]] = {}
        self._ended: set[asyncio.Task[object]] = set()

    async def run(self) -> None:
        """Looks once a second; runs as long as the server."""
        while True:
            await asyncio.sleep(min(1.0, self._seconds / 4))
            limit = time.monotonic() - self._seconds
            for task, (since, deltas) in list(self._since.items()):
                if since < limit or deltas.queued() > self._max_queued:
                    self._ended.add(task)
                    task.cancel()

    def begin(self, task: asyncio.Task[object], deltas: DeltaStream) -> None:
        self._since[task] = (time.monotonic(), deltas)

    def end(self, task: asyncio.Task[object]) -> None:
        self._since.pop(task, None)

    def was_ended(self, task: asyncio.Task[object]) -> bool:
        """Whether this task was cancelled from here; asked once."""
        self._since.pop(task, None)
        if task in self._ended:
            self._ended.discard(task)
            return True
        return False


async def watch(receive: Receive, stream: DeltaStream) -> None:
    """Closes the stream when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.close()


class Responder:
    """Sends one job's answer."""

    def __init__(
        self,
        job: Job,
        shape: ChatFormat | CompletionFormat,
        tokens: TokenBytes,
        metrics: Metrics,
        arrived: float,
        spend: Callable[[int], None],
    ) -> None:
        """arrived: monotonic time at which the request came. spend: told how many tokens have come."""
        self._job = job
        self._shape = shape
        self._tokens = tokens
        self._metrics = metrics
        self._arrived = arrived
        self._spend = spend
        self._last: dict[int, float] = {}
        """Request id -> when its last tokens came."""

    async def stream(self, deltas: DeltaStream, send: Send, headers: Headers, stalled: StalledSends) -> None:
        """Events, from the first delta to [DONE]."""
        batch = await deltas.next()
        if not batch:
            return
        self._raise_early(batch)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no"),
                    *headers,
                ],
            }
        )
        task = asyncio.current_task()
        assert task is not None
        left = len(self._job.requests)
        while batch:
            events, ended = self._events(batch, deltas)
            left -= ended
            last = left <= 0
            if last:
                events.append(self._ending())
            if events:
                stalled.begin(task, deltas)
                await send({"type": "http.response.body", "body": line_safe(b"".join(events)), "more_body": not last})
                stalled.end(task)
            if last:
                return
            batch = await deltas.next()

    async def body(self, deltas: DeltaStream, send: Send, headers: Headers) -> None:
        """One JSON body; nothing is sent when the client has gone."""
        answers = {request_id: Answer(choice.index) for request_id, choice in self._job.choices.items()}
        left = len(answers)
        while left:
            batch = await deltas.next()
            if not batch:
                return
            for request_id, piece in self._pieces(batch, deltas):
                if piece.error is not None:
                    raise failure(piece.error, piece.code, batch)
                answers[request_id].add(piece)
                left -= piece.finish_reason is not None
        self._count_reply()
        given = list(answers.values())
        kept = [given[place] for place in self._job.places()]
        for index, answer in enumerate(kept):
            answer.index = index
        body = self._shape.body(kept, self._job.usage(), self._job.logprobs)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()),
                    *headers,
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})

    def _raise_early(self, batch: Sequence[TokenDelta]) -> None:
        """An error before any token is an HTTP error."""
        for delta in batch:
            if delta.finish in (FinishReason.ERROR, FinishReason.ABORT) and not delta.tokens:
                self._job.choices[delta.request_id].done = True
                self._metrics.finished(delta.finish.value)
                raise failure(delta.error or "The request was aborted.", delta.code, [delta])

    def _events(self, batch: Sequence[TokenDelta], deltas: DeltaStream) -> tuple[list[bytes], int]:
        """Events of a batch, and how many choices ended in it."""
        events: list[bytes] = []
        ended = 0
        for request_id, piece in self._pieces(batch, deltas):
            events.append(self._shape.chunk(self._job.choices[request_id], piece))
            if piece.error is not None:
                events.append(b"data: " + failure(piece.error, piece.code, []).body() + b"\n\n")
            ended += piece.error is not None or piece.finish_reason is not None
        return [event for event in events if event], ended

    def _ending(self) -> bytes:
        self._count_reply()
        if self._job.include_usage:
            return self._shape.usage_chunk(self._job.usage()) + DONE
        return DONE

    def _pieces(self, batch: Sequence[TokenDelta], deltas: DeltaStream) -> list[tuple[int, Piece]]:
        pieces: list[tuple[int, Piece]] = []
        now = time.monotonic()
        for delta in batch:
            choice = self._job.choices[delta.request_id]
            if choice.done:
                continue
            if not delta.tokens and delta.finish is None:
                choice.feed(delta)  # a part of what is told of the prompt
                continue
            if delta.tokens:
                self._time(delta, now)
                self._spend(len(delta.tokens))
            piece = choice.feed(delta)
            if choice.stopped_by_text:
                deltas.end(delta.request_id)
            if choice.done:
                self._count_end(piece, delta)
            pieces.append((delta.request_id, piece))
        return pieces

    def _time(self, delta: TokenDelta, now: float) -> None:
        before = self._last.get(delta.request_id)
        self._last[delta.request_id] = now
        if before is None:
            self._metrics.first_token(now - self._arrived)
        else:
            self._metrics.tokens(now - before, len(delta.tokens))

    def _count_reply(self) -> None:
        self._metrics.replied(*self._job.counts())

    def _count_end(self, piece: Piece, delta: TokenDelta) -> None:
        if piece.finish_reason is not None:
            self._metrics.finished(piece.finish_reason)
        else:
            assert delta.finish is not None
            self._metrics.finished(delta.finish.value)


_STATUS = {
    ErrorCode.DEADLINE: 504,
    ErrorCode.QUEUE_TIMEOUT: 503,
    ErrorCode.QUEUE_FULL: 429,
    ErrorCode.NEVER_FITS: 400,
    ErrorCode.BAD_STRUCTURE: 400,
}


def failure(message: str, code: ErrorCode | None, batch: Sequence[TokenDelta]) -> ApiError:
    """As the engine says it; else 503 where the server is going down, or the engine's fault."""
    if code is not None:
        return ApiError(message, status=_STATUS[code], code=code.value)
    going = any(delta.finish is FinishReason.ABORT for delta in batch)
    return ApiError(message, status=503 if going else 500, code="engine_error")
