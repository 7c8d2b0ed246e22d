"""Pins as the server keeps them: the engine holds the blocks, and a new life of the engine is given them again.

Life of a pin: its prefix is computed as an ordinary prompt with one token to draw, where it is not in the cache yet;
then the engine holds the blocks until the time is over (kvcache/pins.py). When the engine was started again, `restore`
does the same for the time that is left, one pin after another, in the order in which they were made. A pin that cannot
be had again is told in the log and ends. Kept pins are no more than the engine's own.

Off: no `--pin-tokens`: every pin is refused, and nothing is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from octavo.engine.asked import NoAnswer
from octavo.engine.client import AsyncEngineClient
from octavo.server.errors import ApiError
from octavo.types import FinishReason, ListPins, NewRequest, PinInfo, PinPrefix, PinReply, UnpinPrefix

logger = logging.getLogger(__name__)

_TRIES = 3
"""Between computing a prefix and pinning it, others may push it out."""
_LEAST_SECONDS = 0.001


@dataclass(eq=False)
class _Kept:
    """What it takes to make a pin again."""

    prefix: NewRequest
    until: float
    tokens: int


class PinKeeper:
    """All pins of one server. Belongs to its event loop."""

    def __init__(self, client: AsyncEngineClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._missing: list[str] = []
        """Those that the engine of now does not have yet."""
        self._task: asyncio.Task[None] | None = None

    async def pin(self, name: str, prefix: NewRequest, seconds: float) -> PinReply:
        """Pins what is cached; computes it first where it is not. NoAnswer, ApiError: it cannot be done now."""
        until = self._clock() + seconds
        before = self._kept.pop(name, None)
        made = False
        try:
            reply = await self._make(name, prefix, until)
            made = reply.error is None
        finally:
            if not made and before is not None:
                self._kept.setdefault(name, before)
        if made:
            tokens = next((pin.tokens for pin in reply.pins if pin.name == name), 0)
            self._kept[name] = _Kept(prefix, until, tokens)
        return self._known(reply)

    async def unpin(self, name: str) -> PinReply:
        """Ends one; NoAnswer: it goes on."""
        kept = self._kept.pop(name, None)
        try:
            reply = await self._client.ask(lambda call: UnpinPrefix(call=call, name=name))
        except NoAnswer:
            if kept is not None:
                self._kept.setdefault(name, kept)
            raise
        if kept is not None and reply.missing:  # it was about to be made again
            reply = await self._client.ask(lambda call: ListPins(call=call))
        return self._known(reply)

    async def pins(self) -> PinReply:
        """All of them."""
        return self._known(await self._client.ask(lambda call: ListPins(call=call)))

    def restore(self) -> None:
        """The engine was started again, and holds none of them."""
        self.close()
        now = self._clock()
        self._kept = {name: kept for name, kept in self._kept.items() if kept.until > now}
        self._missing = list(self._kept)
        if self._missing:
            self._task = asyncio.create_task(self._restore())

    def close(self) -> None:
        """Restores no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _restore(self) -> None:
        while self._missing:
            name = self._missing[0]
            kept = self._kept.get(name)
            if kept is not None and kept.until > self._clock():
                try:
                    await self._make_again(name, kept)
                except NoAnswer:
                    return  # the next life of the engine gets them all
            self._missing.pop(0)

    async def _make_again(self, name: str, kept: _Kept) -> None:
        """As long as it is neither ended nor replaced."""
        try:
            error = (await self._make(name, kept.prefix, kept.until, lambda: self._kept.get(name) is kept)).error
        except ApiError as refused:
            error = refused.message
        if error is not None and self._kept.get(name) is kept:
            logger.warning("the pin %s ends with its engine: %s", name, error)
            del self._kept[name]

    async def _make(
        self, name: str, prefix: NewRequest, until: float, wanted: Callable[[], bool] = lambda: True
    ) -> PinReply:
        """wanted: asked before anything is pinned; where it is not, what there is."""

        def pin(call: int) -> PinPrefix | ListPins:
            if not wanted():
                return ListPins(call=call)
            return PinPrefix(
                call=call,
                name=name,
                tokens=prefix.prompt,
                seconds=max(_LEAST_SECONDS, until - self._clock()),
                tenant=prefix.tenant,
                cache_salt=prefix.cache_salt,
                adapter=prefix.adapter,
            )

        reply = await self._client.ask(pin)
        for _ in range(_TRIES):
            if not reply.missing:
                break
            again = msgspec.structs.replace(prefix, request_id=self._client.new_id())
            async for delta in self._client.generate(again):
                if delta.finish in (FinishReason.ERROR, FinishReason.ABORT):
                    raise ApiError(f"The prefix cannot be computed: {delta.error}", status=503)
            reply = await self._client.ask(pin)
        return reply

    def _known(self, reply: PinReply) -> PinReply:
        """With those that are being made again; what the engine has given up is no longer kept."""
        held = {pin.name for pin in reply.pins}
        now = self._clock()
        self._kept = {
            name: kept
            for name, kept in self._kept.items()
            if name in held or (name in self._missing and kept.until > now)
        }
        coming = [
            PinInfo(name=name, tokens=kept.tokens, seconds_left=kept.until - now)
            for name, kept in self._kept.items()
            if name not in held
        ]
        return msgspec.structs.replace(reply, pins=[*reply.pins, *coming])
