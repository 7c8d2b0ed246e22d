"""A prefix cache that trusts nothing: every hit is compared with a record of its own before it is used.

The record says, by block, which beginning it was published for and with which tokens. It shares nothing with the
entries but the block's number, so an entry that was damaged, mixed up or forged, or a chain of keys that went wrong,
is noticed: the hit is cut before the first such block, an error is logged, and the mismatch is counted. It costs a
second hash of every prompt that hits.

Off (the default): `kv.verify_prefix_cache = False`. Then the cache compares parent and tokens of the entry itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from octavo.kvcache.keys import KeyChain, pack_tokens
from octavo.kvcache.prefix_cache import AnyEntry, Entry, Parent, PrefixCache, Spill, WindowEntry

log = logging.getLogger(__name__)


class VerifyingCache:
    """See the module; wraps another prefix cache."""

    def __init__(self, inner: PrefixCache) -> None:
        self.mismatches = 0
        self._inner = inner
        self._inner.spill = self._leaves
        self.spill: Spill | None = None
        self._published: dict[int, tuple[bytes, bytes]] = {}
        """Block -> the key it was published under, and its tokens."""

    @property
    def evictions(self) -> int:
        return self._inner.evictions

    @evictions.setter
    def evictions(self, value: int) -> None:
        self._inner.evictions = value

    def match(self, chain: KeyChain, tokens: Sequence[int]) -> Sequence[AnyEntry | None]:
        found = self._inner.match(chain, tokens)
        size = chain.context.block_size
        afresh = KeyChain(chain.context)
        for index, entry in enumerate(found):
            if entry is None:
                continue
            expected = (afresh.key(index, tokens), pack_tokens(tokens[index * size : (index + 1) * size]))
            if self._published.get(entry.block) != expected:
                self.mismatches += 1
                log.error(
                    "the prefix cache holds other tokens in block %d than a prompt's block %d has: the hit is refused",
                    entry.block,
                    index,
                )
                return found[:index]
        return found

    def pin(self, entries: Sequence[AnyEntry], hit: bool = True) -> None:
        self._inner.pin(entries, hit)

    def commit(self, parent: Parent, key: bytes, tokens: Sequence[int], block: int) -> Parent | None:
        entry = self._inner.commit(parent, key, tokens, block)
        if isinstance(entry, (Entry, WindowEntry)) and entry.block == block:
            self._published[block] = (key, pack_tokens(tokens))
        return entry

    def released(self, block: int) -> None:
        self._inner.released(block)

    def evict(self) -> None:
        self._inner.evict()

    def idle(self) -> Iterator[AnyEntry]:
        return self._inner.idle()

    def held(self) -> set[int]:
        held = self._inner.held()
        assert held == set(self._published), "the record names other blocks than the cache holds"
        return held

    def __len__(self) -> int:
        return len(self._inner)

    def _leaves(self, entry: AnyEntry) -> None:
        if self.spill is not None:
            self.spill(entry)
        self._published.pop(entry.block, None)
