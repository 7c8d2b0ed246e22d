"""What the KV manager and the engine need of a tier below the pages, and its null twin.

    spill  -- a block leaves the pages: keeps its content, or does not
    run    -- how many blocks from a position on are there and worth fetching
    load   -- fetches blocks into pages that the caller holds; `Load` says how far it is
    close  -- keeps what the prefix cache still holds, and ends

All calls come from the engine's thread and none waits, but for `wait` and `close`. A tier never fails a request: what
it does not bring is computed. A tier in host memory or on another machine has the same shape.

Off: `NoTier`, where `kv.disk` is None. On: disk.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.kvcache.keys import KeyChain
from octavo.kvcache.tiers.wire import Cached


@dataclass(frozen=True, slots=True)
class Want:
    """A block to fetch, and the page it goes to."""

    group: int
    cached: Cached


class Load:
    """Blocks on their way. The engine reads `done`, then `came`; the tier's thread writes them in the other order."""

    __slots__ = ("came", "cancelled", "done", "wants")

    def __init__(self, wants: Sequence[Want]) -> None:
        self.wants = wants
        self.came = 0
        """Leading blocks that are in their pages."""
        self.done = False
        """No page is touched any more."""
        self.cancelled = False
        """Nobody wants it any more; written by the engine."""


@dataclass(frozen=True)
class TierStats:
    """What was done so far; only ever grows, but for the last two."""

    hits: int = 0
    """Loads that brought something."""
    tokens: int = 0
    """Tokens that they brought."""
    read_bytes: int = 0
    read_seconds: float = 0.0
    written_bytes: int = 0
    dropped: int = 0
    """Blocks that were not kept, for the disk was behind."""
    errors: int = 0
    """Files that were damaged, reads and writes that failed."""
    bytes: int = 0
    """Held now."""
    on: bool = False


class Tier(Protocol):
    """See the module."""

    on: bool
    """Blocks are kept and found."""

    def spill(self, group: int, cached: Cached) -> None:
        """The block is about to be used for something else; its content is copied before this returns, or dropped."""
        ...

    def run(self, chain: KeyChain, tokens: Sequence[int], first: int, last: int) -> int:
        """Blocks of `tokens` from block `first` on, below `last`, that are there, where fetching them pays; else 0."""
        ...

    def load(self, wants: Sequence[Want]) -> Load:
        """Starts to fetch, in order; the pages are the tier's until the load is done."""
        ...

    def wait(self, seconds: float) -> None:
        """Returns when a load is done since the last call, after `seconds` at the latest."""
        ...

    def computed(self, tokens: int, seconds: float) -> None:
        """A step that computed prompts took so long."""
        ...

    def stats(self) -> TierStats: ...

    def close(self, kept: Iterable[tuple[int, Cached]]) -> None:
        """kept: (group, block) that the pages still hold, the most valuable first. Harmless when called twice."""
        ...


class NoTier:
    """The null twin: keeps nothing, has nothing."""

    on = False

    def spill(self, group: int, cached: Cached) -> None:
        """Nothing is kept."""

    def run(self, chain: KeyChain, tokens: Sequence[int], first: int, last: int) -> int:
        return 0

    def load(self, wants: Sequence[Want]) -> Load:
        raise AssertionError("there is nothing to load")

    def wait(self, seconds: float) -> None:
        raise AssertionError("there is nothing to wait for")

    def computed(self, tokens: int, seconds: float) -> None:
        """Nobody asks for it."""

    def stats(self) -> TierStats:
        return TierStats()

    def close(self, kept: Iterable[tuple[int, Cached]]) -> None:
        """Nothing is open."""
