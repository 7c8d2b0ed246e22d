"""One submission's deltas on their way from the client to whoever answers it.

Life: made by `AsyncEngineClient.submit`; `push` for each delta, `next` until it returns nothing; `end` and `close` tell
the engine that no more is wanted. There is no off switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from octavo.types import TokenDelta


class DeltaStream:
    """Deltas of one submission, in order of arrival; it ends once each of its requests has had its final delta.

    What waits here is bounded: a request's tokens are.
    """

    __slots__ = ("_abandon", "_open", "_pending", "_waiter")

    def __init__(self, request_ids: Iterable[int], abandon: Callable[[list[int]], None]) -> None:
        self._open = set(request_ids)
        self._pending: list[TokenDelta] = []
        self._waiter: asyncio.Future[None] | None = None
        self._abandon = abandon

    def push(self, delta: TokenDelta) -> None:
        self._pending.append(delta)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def queued(self) -> int:
        """Tokens that have come and that nobody has taken yet."""
        return sum(len(delta.tokens) for delta in self._pending)

    async def next(self) -> list[TokenDelta]:
        """All deltas that have arrived since the last call, at least one; an empty list at the end."""
        if not self._pending:
            if not self._open:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            if not self._open:
                return []
        deltas, self._pending = self._pending, []
        for delta in deltas:
            if delta.finish is not None:
                self._open.discard(delta.request_id)
        return deltas

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        while deltas := await self.next():
            for delta in deltas:
                yield delta

    def end(self, request_id: int) -> None:
        """The caller needs no more of this request: it is aborted in the engine, and its deltas are dropped."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._abandon([request_id])

    def close(self) -> None:
        """Ends all that is still open, and the reader's wait for it; harmless when nothing is."""
        if self._open:
            ids = list(self._open)
            self._open.clear()
            self._abandon(ids)
            self._wake()
