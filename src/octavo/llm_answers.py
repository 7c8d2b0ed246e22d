"""One answer of `LLM` on its way: from the engine's thread to a thread or an event loop that reads it.

Life: an `Answer` is made with its request -> the engine's thread puts deltas into its mailbox -> the reader takes
them, each of which becomes a piece of text -> `completion` at the end. The engine never waits for a reader; what waits
for one is bounded by the request's own `max_tokens`. A stream that is closed, dropped or cancelled ends its request.
There is no off switch.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from octavo.llm_errors import RequestFailed
from octavo.llm_structure import Form
from octavo.server.choice import Choice, TokenEntry
from octavo.types import NewRequest, TokenDelta, TokenLogprobs


@dataclass(frozen=True)
class Completion:
    """One finished answer."""

    text: str
    tokens: tuple[int, ...]
    """Generated ids, the stop token included."""
    finish_reason: str
    """"stop" or "length"."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens taken from the prefix cache."""
    logprobs: tuple[TokenEntry, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    """Where asked for: of every prompt token; the first has none."""
    form: Form | None = field(default=None, repr=False, compare=False)
    """What `response_model` or `schema` asked for."""

    @property
    def parsed(self) -> Any:
        """An instance of `response_model`, or the value that `schema` describes; None where neither was given.

        Raises StructureError where the answer was cut before it was complete, or the class refuses it.
        """
        return None if self.form is None else self.form.read(self)


class Mailbox(Protocol):
    """Takes deltas from the engine's thread; None: the engine failed or was closed."""

    def put(self, delta: TokenDelta | None) -> None: ...


class ThreadMailbox:
    """For a thread that reads."""

    def __init__(self) -> None:
        self._deltas: queue.SimpleQueue[TokenDelta | None] = queue.SimpleQueue()
        self.put = self._deltas.put
        self.get = self._deltas.get


class LoopMailbox:
    """For a coroutine that reads: its event loop is woken once for all that has come since it last looked."""

    def __init__(self, gone: Callable[[], None]) -> None:
        """gone: told from the engine's thread that the loop was closed, so that nobody will read any more."""
        self._loop = asyncio.get_running_loop()
        self._gone = gone
        self._deltas: deque[TokenDelta | None] = deque()
        self._event = asyncio.Event()
        self._told = False

    def put(self, delta: TokenDelta | None) -> None:
        self._deltas.append(delta)
        if self._told and not self._loop.is_closed():
            return
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            self._gone()

    async def get(self) -> TokenDelta | None:
        while not self._deltas:
            # In this order: what is put after the second line wakes the loop, what came before it is seen.
            self._event.clear()
            self._told = False
            if not self._deltas:
                await self._event.wait()
        return self._deltas.popleft()


class Answer:
    """An open request."""

    def __init__(self, request: NewRequest, choice: Choice, form: Form | None) -> None:
        self.request = request
        self._choice = choice
        self._form = form
        self._tokens: list[int] = []
        self._entries: list[TokenEntry] = []
        self._prompt_logprobs: list[TokenLogprobs | None] = []
        self._texts: list[str] = []
        self._finish_reason = ""

    @property
    def done(self) -> bool:
        return self._choice.done

    def take(self, delta: TokenDelta) -> str:
        """The delta's text. Raises RequestFailed."""
        self._tokens.extend(delta.tokens)
        piece = self._choice.feed(delta)
        self._entries.extend(piece.entries)
        self._prompt_logprobs.extend(scores for _, scores in piece.prompt_logprobs or ())
        if piece.error is not None:
            raise RequestFailed(piece.error, piece.code)
        if piece.finish_reason is not None:
            self._finish_reason = piece.finish_reason
        self._texts.append(piece.text)
        return piece.text

    def completion(self) -> Completion:
        """All of it, once it is done."""
        assert self.done
        return Completion(
            text="".join(self._texts),
            tokens=tuple(self._tokens[: self._choice.completion_tokens]),
            finish_reason=self._finish_reason,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self._choice.cached_tokens,
            logprobs=tuple(self._entries),
            prompt_logprobs=tuple(self._prompt_logprobs),
            form=self._form,
        )


class OpenAnswer(Protocol):
    """An answer that a thread waits for."""

    @property
    def answer(self) -> Answer: ...

    def wait(self) -> str:
        """Waits for one delta; its text."""
        ...

    def end(self) -> None:
        """Aborts the request where it still runs; harmless else."""
        ...


class OpenAsyncAnswer(Protocol):
    """An answer that a coroutine waits for."""

    @property
    def answer(self) -> Answer: ...

    async def wait(self) -> str: ...

    def end(self) -> None: ...


Opened = TypeVar("Opened", bound=OpenAnswer | OpenAsyncAnswer)


class _Stream(Generic[Opened]):
    """What both kinds share: at most one open answer."""

    _open: Opened | None = None
    _result: Completion | None = None
    _closed = False

    @property
    def result(self) -> Completion:
        """The whole answer, once all pieces have been read. Raises ValueError before."""
        if self._result is None:
            raise ValueError("the stream has not been read to its end, so there is no result yet")
        return self._result

    def _close(self) -> None:
        self._closed = True
        opened, self._open = self._open, None
        if opened is not None:
            opened.end()

    def _finish(self, answer: Answer) -> None:
        self._result = answer.completion()
        self._close()

    def __del__(self) -> None:
        self._close()


class TextStream(_Stream[OpenAnswer], Iterator[str]):
    """An answer's text in pieces. The first `next` starts the generation; `close`, leaving a `with`, or dropping the
    stream stops it. `result` is the whole answer afterwards. For one thread at a time."""

    def __init__(self, start: Callable[[], OpenAnswer]) -> None:
        self._start = start

    def __next__(self) -> str:
        if self._closed:
            raise StopIteration
        try:
            opened = self._open
            if opened is None:
                opened = self._start()
                self._open = opened
            while not opened.answer.done:
                if text := opened.wait():
                    return text
        except BaseException:
            self._close()
            raise
        self._finish(opened.answer)
        raise StopIteration

    def close(self) -> None:
        self._close()

    def __enter__(self) -> TextStream:  # noqa: PYI034
        return self

    def __exit__(self, *error: object) -> None:
        self._close()


class AsyncTextStream(_Stream[OpenAsyncAnswer], AsyncIterator[str]):
    """As `TextStream`, for one event loop; cancelling the task that reads it stops the generation too."""

    def __init__(self, start: Callable[[], Awaitable[OpenAsyncAnswer]]) -> None:
        self._start = start

    async def __anext__(self) -> str:
        if self._closed:
            raise StopAsyncIteration
        try:
            opened = self._open
            if opened is None:
                opened = await self._start()
                self._open = opened
            while not opened.answer.done:
                if text := await opened.wait():
                    return text
        except BaseException:
            self._close()
            raise
        self._finish(opened.answer)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._close()

    async def __aenter__(self) -> AsyncTextStream:  # noqa: PYI034
        return self

    async def __aexit__(self, *error: object) -> None:
        self._close()
