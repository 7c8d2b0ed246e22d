"""Questions to the engine that are no requests, and the replies that are waited for.

Life: `ask` numbers a message and waits; `answer` settles it with the engine's reply, `fail` settles all when the engine
is lost. Nothing here is sent again to a new engine: the caller is told, and decides. There is no off switch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from octavo.types import PinReply, PinRequest


class NoAnswer(Exception):
    """The engine cannot be asked now; the message is one sentence."""


class Asked:
    """All open questions of one client; belongs to one event loop."""

    def __init__(self) -> None:
        self._calls = itertools.count(1)
        self._open: dict[int, asyncio.Future[PinReply]] = {}

    async def ask(self, make: Callable[[int], PinRequest], write: Callable[[PinRequest], None]) -> PinReply:
        """Sends what `make` makes of a number; NoAnswer where the engine goes away meanwhile."""
        call = next(self._calls)
        future: asyncio.Future[PinReply] = asyncio.get_running_loop().create_future()
        self._open[call] = future
        try:
            write(make(call))
            return await future
        finally:
            self._open.pop(call, None)

    def answer(self, reply: PinReply) -> None:
        future = self._open.get(reply.call)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail(self) -> None:
        """The engine is gone."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(NoAnswer("The engine is being started again; try again in a moment."))
