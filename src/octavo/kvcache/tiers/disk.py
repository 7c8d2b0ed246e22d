"""The tier on disk: two threads between the pages and the store.

Evicted blocks are copied on the engine's thread into buffers that lie ready (buffers.py); the writer's thread puts them
on disk. Where it is behind, so that no buffer is free, blocks are dropped and counted. The reader's thread fetches
blocks straight into the pages of the request that waits for them, from the disk or, while they wait to be written,
from their buffers. The step never waits for the disk.

A damaged file is removed and its block computed, with one line in the log. A disk that is full or cannot be written
turns the tier off, with one line; requests never notice more than that.

Life: `open_tier`, then the calls of `tier.Tier`, then `close`. Off: `kv.disk` is None, which makes a `NoTier`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from octavo.config import ConfigError, KVConfig
from octavo.kvcache.keys import KeyChain
from octavo.kvcache.tiers import policy
from octavo.kvcache.tiers.buffers import Buffers
from octavo.kvcache.tiers.store import DiskStore
from octavo.kvcache.tiers.tier import Load, NoTier, Tier, TierStats, Want
from octavo.kvcache.tiers.wire import Cached, WireError, header_bytes
from octavo.types import BlockPages, ModelInfo

log = logging.getLogger(__name__)

QUEUE_BYTES = 128 << 20
"""Of blocks that wait to be written, at most."""
_MOST_QUEUED = 512
"""Blocks that wait to be written, at most: small ones need less memory."""
CLOSE_SECONDS = 2.0
"""An orderly end has this long to keep what the pages hold; less than the parent waits before it ends the engine."""
_AHEAD = 16
"""Blocks that the system is told of before they are read."""


@dataclass(slots=True)
class _Waiting:
    """A block on its way to the disk."""

    group: int
    cached: Cached
    buffer: memoryview
    """Its file: room for the header, then the wire form."""
    users: int = 1
    """The writer, and the reader while it copies."""


class DiskTier:
    """See the module."""

    def __init__(self, store: DiskStore, pages: BlockPages, crossover: policy.Crossover, queue_bytes: int) -> None:
        self.on = True
        self._store = store
        self._pages = pages
        self._crossover = crossover
        self._block_tokens = pages.shapes[0].tokens
        self._room = threading.Condition()
        """Guards the next four. Blocks are added by the engine's thread alone, so it may look without."""
        self._queue: deque[_Waiting] = deque()
        self._pending: dict[tuple[bytes, int], _Waiting] = {}
        """The queue, and what is being written."""
        size = max(store.file_bytes(group) for group in range(len(pages.shapes)))
        self._buffers = Buffers(size, min(queue_bytes // size, _MOST_QUEUED))
        self._ending = False
        self._loads: SimpleQueue[Load | None] = SimpleQueue()
        self._arrived = threading.Event()
        self._hits = self._tokens = self._read_bytes = self._written = self._dropped = 0
        self._failed_reads = self._failed_writes = 0
        self._read_seconds = 0.0
        self._closed = False
        self._writer = threading.Thread(target=self._write_all, name="octavo-kv-writer", daemon=True)
        self._reader = threading.Thread(target=self._read_all, name="octavo-kv-reader", daemon=True)
        self._writer.start()
        self._reader.start()

    # --- the engine's thread ------------------------------------------------------------------------

    def spill(self, group: int, cached: Cached) -> None:
        if not self.on:
            return
        if self._store.has(cached.key, group):
            self._store.touch(cached.key, group)
        elif not self._enqueue(group, cached):
            self._dropped += 1

    def run(self, chain: KeyChain, tokens: Sequence[int], first: int, last: int) -> int:
        if not self.on:
            return 0
        groups = range(len(self._pages.shapes))
        index = first
        while index < last:
            key = chain.key(index, tokens)
            if not all(self._store.has(key, group) or (key, group) in self._pending for group in groups):
                break
            index += 1
        count = index - first
        return count if count and self._crossover.worth(count * self._block_tokens) else 0

    def load(self, wants: Sequence[Want]) -> Load:
        load = Load(wants)
        self._loads.put(load)
        return load

    def wait(self, seconds: float) -> None:
        self._arrived.wait(seconds)
        self._arrived.clear()

    def computed(self, tokens: int, seconds: float) -> None:
        self._crossover.computed(tokens, seconds)

    def stats(self) -> TierStats:
        return TierStats(
            hits=self._hits,
            tokens=self._tokens,
            read_bytes=self._read_bytes,
            read_seconds=self._read_seconds,
            written_bytes=self._written,
            dropped=self._dropped,
            errors=self._failed_reads + self._failed_writes,
            bytes=self._store.size,
            on=self.on,
        )

    def lines(self) -> tuple[str, ...]:
        """For the start-up report."""
        rates = self._crossover.rates
        return (
            f"disk       {self._store.size / 2**20:.0f} MiB of KV blocks in {self._store.directory}; "
            f"{policy.judgement(rates)}",
        )

    def close(self, kept: Iterable[tuple[int, Cached]]) -> None:
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + CLOSE_SECONDS
        self._keep(kept, deadline)
        with self._room:
            self._ending = True
            self._room.notify_all()
        self._loads.put(None)
        self._writer.join(max(0.0, deadline - time.monotonic()))
        with self._room:
            self._queue.clear()
        self._writer.join()
        self._reader.join()
        try:
            policy.save_rates(self._store.directory, self._crossover.rates)
        except OSError as error:
            log.warning("the KV disk tier's speeds were not kept: %s", error)
        self._store.close()

    def _keep(self, kept: Iterable[tuple[int, Cached]], deadline: float) -> None:
        """Spills what is left, waiting for the writer where it is behind."""
        for group, cached in kept:
            with self._room:
                while self.on and not self._buffers.free and time.monotonic() < deadline:
                    self._room.wait(deadline - time.monotonic())
            if not self.on or time.monotonic() >= deadline:
                return
            self.spill(group, cached)

    def _enqueue(self, group: int, cached: Cached) -> bool:
        """Copies a block for the writer; False where there is no room."""
        name = (cached.key, group)
        with self._room:
            if name in self._pending:
                return True
            buffer = self._buffers.take()
        if buffer is None:
            return False
        size = self._store.file_bytes(group)
        self._pages.export_block(group, cached.block, buffer[header_bytes(self._pages.shapes[group]) : size])
        with self._room:
            self._pending[name] = waiting = _Waiting(group, cached, buffer)
            self._queue.append(waiting)
            self._room.notify_all()
        return True

    # --- the writer's thread ------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (waiting := self._next()) is not None:
            group, cached = waiting.group, waiting.cached
            if self.on:
                try:
                    self._written += self._store.write(group, cached, waiting.buffer[: self._store.file_bytes(group)])
                except OSError as error:
                    self.turn_off(error)
                except Exception as error:
                    log.exception("the KV disk tier failed")
                    self.turn_off(error)
            with self._room:
                del self._pending[cached.key, group]
                self._let_go(waiting)

    def _let_go(self, waiting: _Waiting) -> None:
        """One user less, with the lock held; the last one gives the buffer back."""
        waiting.users -= 1
        if not waiting.users:
            self._buffers.give(waiting.buffer)
            self._room.notify_all()

    def _next(self) -> _Waiting | None:
        with self._room:
            self._room.wait_for(lambda: bool(self._queue) or self._ending)
            return self._queue.popleft() if self._queue else None

    def turn_off(self, error: Exception) -> None:
        """Nothing is kept or found any more."""
        self._failed_writes += 1
        self.on = False
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        log.warning("the KV disk tier in %s is off until the next start: %s", self._store.directory, reason)

    # --- the reader's thread ------------------------------------------------------------------------

    def _read_all(self) -> None:
        size = max(self._store.file_bytes(group) for group in range(len(self._pages.shapes)))
        buffer = memoryview(bytearray(size))
        while (load := self._loads.get()) is not None:
            try:
                self._read(load, buffer)
            except (OSError, WireError) as error:
                self._failed_reads += 1
                log.warning("a KV block was not read from disk and is computed: %s", error)
            except Exception:
                self._failed_reads += 1
                log.exception("KV blocks were not read from disk and are computed")
            finally:
                load.done = True
                self._arrived.set()

    def _read(self, load: Load, buffer: memoryview) -> None:
        """Fills pages until the load's end, or the first block that is not to be had."""
        began = time.perf_counter()
        wants = load.wants
        size, copying = 0, 0.0
        try:
            for want in wants[:_AHEAD]:
                self._store.expect(want.group, want.cached)
            for index, want in enumerate(wants):
                if load.cancelled:
                    return
                if index + _AHEAD < len(wants):
                    self._store.expect(wants[index + _AHEAD].group, wants[index + _AHEAD].cached)
                copied = self._copy(want)
                if copied is None:
                    wire = self._store.read(want.group, want.cached, buffer)
                    if wire is None:
                        return
                    self._pages.import_block(want.group, want.cached.block, wire)
                    size += len(wire)
                else:
                    copying += copied
                load.came += 1
        finally:
            seconds = time.perf_counter() - began - copying
            self._crossover.read(size, seconds)
            self._read_bytes += size
            self._read_seconds += seconds
            self._hits += load.came > 0
            self._tokens += load.came // len(self._pages.shapes) * self._block_tokens

    def _copy(self, want: Want) -> float | None:
        """Fills the page of a block that waits to be written; seconds that it took, None where it does not wait."""
        began = time.perf_counter()
        with self._room:
            waiting = self._pending.get((want.cached.key, want.group))
            if waiting is None:
                return None
            waiting.users += 1
        shape = self._pages.shapes[want.group]
        header = header_bytes(shape)
        try:
            self._pages.import_block(want.group, want.cached.block, waiting.buffer[header : header + shape.bytes])
        finally:
            with self._room:
                self._let_go(waiting)
        return time.perf_counter() - began


def open_tier(config: KVConfig, info: ModelInfo, pages: BlockPages | None) -> Tier:
    """The tier that the resolved configuration asks for. Raises ConfigError where its directory cannot be had."""
    if config.disk is None:
        return NoTier()
    assert config.disk_bytes is not None and pages is not None
    directory = Path(config.disk)
    store = DiskStore(directory, config.disk_bytes, info.weights_id, info.numerics_id, pages)
    least = sum(store.file_bytes(group) for group in range(len(pages.shapes)))
    if config.disk_bytes < least:
        store.close()
        raise ConfigError(
            f"--kv-disk-bytes {config.disk_bytes} is less than one block of {least}; "
            f"--kv-disk-bytes {1024 * least} would hold 1024"
        )
    saved = policy.saved_rates(directory)
    full: OSError | None = None
    try:
        disk_bytes = policy.probe(directory)
    except OSError as error:
        full, disk_bytes = error, saved.disk_bytes if saved is not None else 1.0
    token_bytes = sum(shape.bytes / shape.tokens for shape in pages.shapes)
    # Speeds of a model with other pages say nothing of this one.
    known = saved.prefill_tokens if saved is not None and saved.token_bytes == token_bytes else 0.0
    tier = DiskTier(store, pages, policy.Crossover(disk_bytes, token_bytes, known), QUEUE_BYTES)
    if full is not None:
        tier.turn_off(full)
    return tier


def tier_lines(tier: Tier) -> tuple[str, ...]:
    """What to tell the user at start."""
    return tier.lines() if isinstance(tier, DiskTier) else ()
