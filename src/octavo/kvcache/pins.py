"""Pinned prefixes: cached blocks that stay whatever else is needed, until their time is over or they are unpinned.

A pin is a reader, as a request is: it takes the blocks of a prefix that are cached when it is made. What is not cached
must be computed first, by sending the prefix as a prompt. All pins together hold at most the budget, and admission
counts with the whole of it, so that no request that was let in can find its place taken.

Off: `kv.pin_tokens = 0`: nothing can be pinned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.kvcache.block_table import SequenceKV
from octavo.kvcache.group import WindowGroup
from octavo.kvcache.manager import KVManager
from octavo.types import PinInfo, PinPrefix, PinReply, PinRequest, UnpinPrefix

MAX_PINS = 256
"""Pins may share blocks, so the budget alone does not bound their number."""


@dataclass
class _Pin:
    tokens: int
    until: float
    seq: SequenceKV


class PinBook:
    """All pins of one engine."""

    def __init__(self, kv: KVManager, budget_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._kv = kv
        self._budget = budget_tokens // kv.block_size
        self._clock = clock
        self._pins: dict[str, _Pin] = {}
        self._next = float("inf")
        """When the first one ends."""
        kv.keep_clear(self._budget)

    @property
    def blocks(self) -> int:
        """Blocks that pins hold, over all groups."""
        return self._budget * len(self._kv.groups) - sum(self._kv.headroom)

    def answer(self, message: PinRequest) -> PinReply:
        """Does what is asked."""
        self.expire()
        if isinstance(message, PinPrefix):
            return self._pin(message)
        if isinstance(message, UnpinPrefix):
            pin = self._pins.get(message.name)
            if pin is None:
                return self._reply(message.call, error=f"There is no pin {message.name!r}.", missing=True)
            self._drop(message.name)
        return self._reply(message.call)

    def expire(self) -> None:
        """Gives up the pins whose time is over."""
        now = self._clock()
        if now < self._next:
            return
        for name in [name for name, pin in self._pins.items() if pin.until <= now]:
            self._drop(name)

    def validate(self) -> None:
        """Asserts that the budget holds."""
        held = self._held()
        assert all(count <= self._budget for count in held), f"pins hold {held} blocks of {self._budget}"
        assert all(pin.seq.num_blocks for pin in self._pins.values())

    def _pin(self, message: PinPrefix) -> PinReply:
        size = self._kv.block_size
        full = len(message.tokens) // size
        if not self._budget:
            return self._reply(message.call, "Nothing can be pinned; --pin-tokens 4096 at the start would allow it.")
        if not full:
            return self._reply(
                message.call,
                f"The prefix has {len(message.tokens)} tokens and whole blocks of {size} are pinned; "
                f"a prefix of {size} tokens or more would work.",
            )
        if full > self._budget:
            return self._reply(message.call, self._over(full))
        old = self._pins.get(message.name)
        if old is None and len(self._pins) >= MAX_PINS:
            return self._reply(message.call, f"There are {MAX_PINS} pins already; remove one first.")
        seq = self._kv.sequence(message.adapter, message.tenant, message.cache_salt)
        tokens = message.tokens[: full * size]
        held = self._kv.hold(seq, tokens)
        if not held or seq.matched < len(tokens):
            self._kv.release(seq)
            return self._reply(
                message.call,
                "The prefix is not in the cache whole, or running requests need its place; try again in a moment.",
                missing=True,
            )
        pin = _Pin(len(tokens), self._clock() + message.seconds, seq)
        before = self._pins.copy()
        self._pins[message.name] = pin
        if max(self._held()) > self._budget:
            self._pins = before
            self._kv.release(seq)
            return self._reply(message.call, self._over(full))
        if old is not None:
            self._kv.release(old.seq)
        self._changed()
        return self._reply(message.call)

    def _over(self, blocks: int) -> str:
        size = self._kv.block_size
        held = max(self._held())
        return (
            f"The prefix fills {blocks} blocks of {size} tokens, and pins hold {held} of the {self._budget} that "
            f"--pin-tokens allows; remove a pin, or start with --pin-tokens {(held + blocks) * size}."
        )

    def _drop(self, name: str) -> None:
        self._kv.release(self._pins.pop(name).seq)
        self._changed()

    def _changed(self) -> None:
        self._next = min((pin.until for pin in self._pins.values()), default=float("inf"))
        self._kv.headroom = [self._budget - count for count in self._held()]

    def _held(self) -> list[int]:
        """Blocks of each group. In a window group every reader counts, for each claims blocks of its own."""
        counts = []
        for number, group in enumerate(self._kv.groups):
            tables = [pin.seq.tables[number].blocks for pin in self._pins.values()]
            if isinstance(group, WindowGroup):
                counts.append(sum(map(len, tables)))
            else:
                counts.append(len({block for blocks in tables for block in blocks}))
        return counts

    def _reply(self, call: int, error: str | None = None, missing: bool = False) -> PinReply:
        now = self._clock()
        size = self._kv.block_size
        return PinReply(
            call=call,
            pins=[
                PinInfo(name=name, tokens=pin.tokens, seconds_left=pin.until - now) for name, pin in self._pins.items()
            ],
            budget_tokens=self._budget * size,
            pinned_tokens=max(self._held()) * size,
            error=error,
            missing=missing,
        )
