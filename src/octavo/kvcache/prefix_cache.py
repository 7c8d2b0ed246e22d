"""The prefix cache of one group: finds full blocks that hold the beginning of a new prompt.

A cached block is an `Entry` in a forest: its parent is the entry of the block before it, or the `KeyContext` of a
first block. Entries are found by key, then checked: same parent, same tokens.

Life of an entry: `commit` when its block is full and its step has retired; matched and pinned any number of times;
idle when the last reader leaves; evicted when the pool runs dry: leaves first, and of those the one that is worth
least (eviction.py). Before its block is given up, `spill` may copy it.

A block may be computed twice, by two requests at the same time. The second keeps its copy private and goes on
below the first one's entry. So an entry in use can stand below an idle one; when only such entries are left,
evicting the idle one takes its subtree out of the cache (blocks in use go on as private ones).

A window group's entries stand alone (`WindowPrefixCache`), for what lies behind the window goes first and is not
needed again: the least recently used is evicted, and a prefix counts where its last window is there.

Off: `kv.prefix_cache = False` makes a `NoPrefixCache`, which never holds a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.eviction import Evictable, IdleLeaves, Retention, make_retention
from octavo.kvcache.keys import TOKEN_BYTES, KeyChain, KeyContext, block_key, pack_tokens, root_key


class Entry(Evictable):
    """One cached block."""

    __slots__ = ("alive", "block", "children", "hits", "index", "key", "packed", "parent")

    def __init__(self, key: bytes, block: int, packed: bytes, parent: Entry | KeyContext) -> None:
        super().__init__()
        self.key = key
        self.block = block
        self.packed = packed
        self.parent = parent
        self.children: dict[bytes, Entry] = {}
        self.alive = True
        self.hits = 0
        """Requests that found it."""
        self.index: int = parent.index + 1 if isinstance(parent, Entry) else 0
        """Its place in the prompts that begin with it."""

    @property
    def above(self) -> bytes:
        """Key of the block before it."""
        return self.parent.key if isinstance(self.parent, Entry) else root_key(self.parent)


class WindowEntry:
    """One cached block of a window group. It stands alone: its parents may be gone."""

    __slots__ = ("above", "block", "key", "packed")

    def __init__(self, key: bytes, block: int, packed: bytes, above: bytes) -> None:
        self.key = key
        self.block = block
        self.packed = packed
        self.above = above


AnyEntry = Entry | WindowEntry
Parent = AnyEntry | KeyContext
Spill = Callable[[AnyEntry], None]
"""Copies an entry's block before it is given up."""


class PrefixCache(Protocol):
    """What the manager needs of a prefix cache."""

    spill: Spill | None
    """Called for every entry that leaves, while its block still holds what it did."""
    evictions: int
    """Blocks given up so far."""
    mismatches: int
    """Hits that a check refused (verify.py)."""

    def match(self, chain: KeyChain, tokens: Sequence[int]) -> Sequence[AnyEntry | None]:
        """The cached blocks of `tokens`, from the first; None for one that is missing while later ones are there.

        The caller pins what it takes before anything else.
        """
        ...

    def pin(self, entries: Sequence[AnyEntry], hit: bool = True) -> None:
        """One reader more for each block. hit: not a request that comes back for what it had itself."""
        ...

    def commit(self, parent: Parent, key: bytes, tokens: Sequence[int], block: int) -> Parent | None:
        """Publishes a full block; returns the parent of the next one, or None where nothing may follow."""
        ...

    def released(self, block: int) -> None:
        """A reader has left `block`."""
        ...

    def evict(self) -> None:
        """Gives up at least one idle block."""
        ...

    def idle(self) -> Iterator[AnyEntry]:
        """The entries that nobody reads, parents before children and those that would be evicted last first."""
        ...

    def held(self) -> set[int]:
        """Blocks that the cache holds, checked for consistency."""
        ...

    def __len__(self) -> int: ...


class NoPrefixCache:
    """The null twin: nothing is found, nothing is kept."""

    def __init__(self) -> None:
        self.spill: Spill | None = None
        self.evictions = self.mismatches = 0

    def match(self, chain: KeyChain, tokens: Sequence[int]) -> Sequence[AnyEntry | None]:
        return []

    def pin(self, entries: Sequence[AnyEntry], hit: bool = True) -> None:
        assert not entries

    def commit(self, parent: Parent, key: bytes, tokens: Sequence[int], block: int) -> Parent | None:
        return None

    def released(self, block: int) -> None:
        return None

    def evict(self) -> None:
        raise AssertionError("nothing is cached, so nothing can be evicted")

    def idle(self) -> Iterator[AnyEntry]:
        return iter(())

    def held(self) -> set[int]:
        return set()

    def __len__(self) -> int:
        return 0


E = TypeVar("E", Entry, WindowEntry)


class _Kept(Generic[E]):
    """Entries by key and by block, and the idle ones in the order in which they went idle."""

    def __init__(self, pool: BlockPool) -> None:
        self.spill: Spill | None = None
        self.evictions = self.mismatches = 0
        self._pool = pool
        self._entries: dict[bytes, E] = {}
        self._by_block: dict[int, E] = {}
        self._idle: dict[int, E] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def _keep(self, entry: E) -> None:
        self._entries[entry.key] = entry
        self._by_block[entry.block] = entry
        self._pool.hold(entry.block)

    def _drop(self, entry: E) -> None:
        self.evictions += 1
        if self.spill is not None:
            self.spill(entry)
        del self._entries[entry.key]
        del self._by_block[entry.block]
        self._idle.pop(entry.block, None)
        self._pool.unhold(entry.block)

    def _blocks(self) -> set[int]:
        """Blocks that are held, with what both kinds of entries must fulfil."""
        for entry in self._entries.values():
            assert self._by_block[entry.block] is entry
            assert (entry.block in self._idle) == self._pool.is_idle(entry.block), "the idle list is wrong"
        assert len(self._by_block) == len(self._entries) and len(self._idle) == self._pool.idle
        return set(self._by_block)


class KeyedPrefixCache(_Kept[Entry]):
    """A forest: every entry's parent is in the cache."""

    def __init__(self, pool: BlockPool, retention: Retention) -> None:
        super().__init__(pool)
        self._retention = retention
        self._leaves = IdleLeaves()
        self._tickets = 0
        self._clock = 0
        """Blocks that have entered."""

    def match(self, chain: KeyChain, tokens: Sequence[int]) -> list[Entry]:
        found: list[Entry] = []
        if not self._entries:
            return found
        size = chain.context.block_size
        parent: Parent = chain.context
        for index in range(len(tokens) // size):
            entry = self._entries.get(chain.key(index, tokens))
            if entry is None or entry.parent != parent:
                break
            if entry.packed != pack_tokens(tokens[index * size : (index + 1) * size]):
                break
            found.append(entry)
            parent = entry
        return found

    def commit(self, parent: Parent, key: bytes, tokens: Sequence[int], block: int) -> Parent | None:
        assert not isinstance(parent, WindowEntry)
        if isinstance(parent, Entry) and not parent.alive:
            return None
        packed = pack_tokens(tokens)
        known = self._entries.get(key)
        if known is not None:
            return known if known.parent == parent and known.packed == packed else None
        entry = Entry(key, block, packed, parent)
        if isinstance(parent, Entry):
            parent.children[key] = entry
            self._leaves.remove(parent)
        self._keep(entry)
        self._clock += 1
        return entry

    def pin(self, entries: Sequence[AnyEntry], hit: bool = True) -> None:
        for entry in entries:
            assert isinstance(entry, Entry)
            self._pool.share(entry.block)
            if self._idle.pop(entry.block, None) is not None:
                self._leaves.remove(entry)
            entry.hits += hit

    def released(self, block: int) -> None:
        if not self._pool.is_idle(block):
            return
        entry = self._idle[block] = self._by_block[block]
        self._tickets += 1
        entry.ticket = self._tickets
        position = entry.index * (len(entry.packed) // TOKEN_BYTES)
        entry.value = self._retention(self._clock, entry.hits, position)
        if not entry.children:
            self._leaves.add(entry)

    def evict(self) -> None:
        entry = self._leaves.first()
        if entry is None:
            entry = next(iter(self._idle.values()))
            while child := next((c for c in entry.children.values() if c.block in self._idle), None):
                entry = child
        assert isinstance(entry, Entry)
        self._forget(entry)

    def idle(self) -> Iterator[AnyEntry]:
        last: dict[bytes, tuple[float, int]] = {}
        """When each goes at the earliest: not before what stands below it."""
        entries = sorted(self._idle.values(), key=lambda entry: -entry.index)
        for entry in entries:
            own = last[entry.key] = max(last.get(entry.key, (0.0, 0)), (entry.value, entry.ticket))
            if isinstance(entry.parent, Entry):
                last[entry.parent.key] = max(last.get(entry.parent.key, (0.0, 0)), own)
        entries.sort(key=lambda entry: (last[entry.key], -entry.index), reverse=True)
        return iter(entries)

    def _forget(self, top: Entry) -> None:
        """Takes an entry out of the cache, and what stands below it."""
        parent = top.parent
        if isinstance(parent, Entry):
            del parent.children[top.key]
            if not parent.children and parent.block in self._idle:
                self._leaves.add(parent)
        stack = [top]
        while stack:
            entry = stack.pop()
            stack.extend(entry.children.values())
            entry.children.clear()
            entry.alive = False
            self._leaves.remove(entry)
            self._drop(entry)

    def held(self) -> set[int]:
        for key, entry in self._entries.items():
            parent = entry.parent
            above = parent.key if isinstance(parent, Entry) else root_key(parent)
            assert key == entry.key == block_key(above, entry.packed), "an entry's key does not name its content"
            assert entry.alive
            if isinstance(parent, Entry):
                assert self._entries.get(parent.key) is parent and parent.children[key] is entry, (
                    "an entry is an orphan"
                )
                assert entry.index == parent.index + 1
            assert all(self._entries[child] is below for child, below in entry.children.items())
            assert bool(entry.queued) == (entry.block in self._idle and not entry.children), "the queue is wrong"
        assert len(self._leaves) == sum(bool(entry.queued) for entry in self._entries.values())
        return self._blocks()


class WindowPrefixCache(_Kept[WindowEntry]):
    """Entries without a forest: a hit needs the last window of a prefix, not its beginning."""

    def match(self, chain: KeyChain, tokens: Sequence[int]) -> Sequence[AnyEntry | None]:
        if not self._entries:
            return []
        size = chain.context.block_size
        found: list[AnyEntry | None] = []
        above = root_key(chain.context)
        for index in range(len(tokens) // size):
            key = chain.key(index, tokens)
            entry = self._entries.get(key)
            if entry is not None and (
                entry.above != above or entry.packed != pack_tokens(tokens[index * size : (index + 1) * size])
            ):
                entry = None
            found.append(entry)
            above = key
        return found

    def commit(self, parent: Parent, key: bytes, tokens: Sequence[int], block: int) -> Parent | None:
        above = parent.key if isinstance(parent, (Entry, WindowEntry)) else root_key(parent)
        packed = pack_tokens(tokens)
        known = self._entries.get(key)
        if known is not None:
            return known if known.above == above and known.packed == packed else None
        entry = WindowEntry(key, block, packed, above)
        self._keep(entry)
        return entry

    def pin(self, entries: Sequence[AnyEntry], hit: bool = True) -> None:
        for entry in entries:
            self._pool.share(entry.block)
            self._idle.pop(entry.block, None)

    def released(self, block: int) -> None:
        if self._pool.is_idle(block):
            self._idle[block] = self._by_block[block]

    def evict(self) -> None:
        self._drop(next(iter(self._idle.values())))

    def idle(self) -> Iterator[AnyEntry]:
        return iter(list(reversed(self._idle.values())))

    def held(self) -> set[int]:
        for key, entry in self._entries.items():
            assert key == entry.key == block_key(entry.above, entry.packed), "an entry's key does not name its content"
        return self._blocks()


def make_prefix_cache(enabled: bool, pool: BlockPool, windowed: bool = False, eviction: str = "cost") -> PrefixCache:
    """The prefix cache that the configuration asks for."""
    if not enabled:
        return NoPrefixCache()
    if windowed:
        return WindowPrefixCache(pool)
    return KeyedPrefixCache(pool, make_retention(eviction, pool.total))
