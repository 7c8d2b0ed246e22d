"""The logits at every position of a prompt, computed in any chunks, beside others, with and without cached blocks.

Drives an executor's forward pass below the slots: the probe hands out blocks itself, one table a KV group, and gives
back those that a window has left behind, so that noise is written over them as in service.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.execution.inputs import StepInputs


@dataclass(eq=False)
class Track:
    """One sequence on its way through its prompt."""

    tokens: list[int]
    tables: list[list[int]]
    start: int = 0
    store_from: int = 0
    given_back: list[int] = field(default_factory=list)
    """Blocks at the front that belong to others by now, a group."""
    rows: list[np.ndarray] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.tokens) - self.start

    def logits(self) -> np.ndarray:
        return np.concatenate(self.rows)


class Probe:
    """Owns the executor's blocks."""

    def __init__(self, executor: Any, rng: random.Random) -> None:
        self._executor = executor
        self._rng = rng
        self._size: int = executor.config.kv.block_size
        self._windows = [group.window for group in executor.info.kv_groups]
        self._free = [list(range(count)) for count in executor.num_blocks]
        for free in self._free:
            rng.shuffle(free)

    def logits(self, tokens: Sequence[int], chunk: int | None = None, noise: int = 0) -> np.ndarray:
        """[positions, vocabulary] of a prompt computed in chunks, among `noise` other sequences."""
        track = self._track(tokens)
        self._finish(track, chunk, noise)
        self._release(track)
        return track.logits()

    def cached_logits(
        self, tokens: Sequence[int], blocks: int, chunk: int | None = None, noise: int = 0
    ) -> tuple[int, np.ndarray]:
        """As `logits`, over blocks that another request wrote: the first position computed, and the logits from it.

        Of a prompt that is cached whole the last position is computed again, without a store.
        """
        first = self._track(tokens)
        self._step([(first, len(first.tokens))])
        track = self._track(tokens)
        track.store_from = blocks * self._size
        track.start = begin = min(track.store_from, len(tokens) - 1)
        for mine, theirs, free in zip(track.tables, first.tables, self._free, strict=True):
            free += mine[:blocks]
            mine[:blocks] = theirs[:blocks]
        self._finish(track, chunk, noise)
        self._release(first)
        self._release(track, blocks)
        return begin, track.logits()

    def _track(self, tokens: Sequence[int]) -> Track:
        count = -(-len(tokens) // self._size)
        tables = [[free.pop() for _ in range(count)] for free in self._free]
        return Track(list(tokens), tables, given_back=[0] * len(tables))

    def _release(self, track: Track, shared: int = 0) -> None:
        for table, back, free in zip(track.tables, track.given_back, self._free, strict=True):
            free += table[max(back, shared) :]

    def _finish(self, track: Track, chunk: int | None, noise: int) -> None:
        others: list[Track] = []
        while track.left:
            count = min(track.left, chunk or track.left)
            if noise:
                others = [other for other in others if other.left] or self._others(noise)
            works = [(track, count), *((other, self._rng.randint(1, other.left)) for other in others)]
            self._rng.shuffle(works)
            self._step(works)
            if track.store_from == 0:
                self._give_back(track)
            for other in others:
                if not other.left:
                    self._release(other)
        for other in others:
            if other.left:
                self._release(other)

    def _others(self, count: int) -> list[Track]:
        vocab = self._executor.info.num_tokens
        return [
            self._track([self._rng.randrange(vocab) for _ in range(self._rng.randint(1, 70))]) for _ in range(count)
        ]

    def _give_back(self, track: Track) -> None:
        """Blocks of a window group that no later position sees."""
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            gone = max(0, track.start - window + 1) // self._size
            self._free[group] += track.tables[group][track.given_back[group] : gone]
            track.given_back[group] = max(track.given_back[group], gone)

    def _step(self, works: Sequence[tuple[Track, int]]) -> None:
        tokens: list[int] = []
        seqs: list[tuple[int, int, int, int]] = []
        for track, count in works:
            seqs.append((len(tokens), count, track.start, track.store_from))
            tokens += track.tokens[track.start : track.start + count]
        width = max(len(track.tables[0]) for track, _ in works)
        tables = []
        for group in range(len(self._free)):
            table = np.zeros((len(works), width), np.int32)
            for row, (track, _) in enumerate(works):
                table[row, : len(track.tables[group])] = track.tables[group]
            tables.append(table)
        rows = np.arange(len(tokens), dtype=np.int32)
        forward = self._executor.forward
        forward.run(StepInputs(np.array(tokens, np.int32), np.array(seqs, np.int32), tables, rows, []))
        found = forward.logits(len(tokens))
        for (track, count), (row, *_) in zip(works, seqs, strict=True):
            track.rows.append(np.array(found[row : row + count]))
            track.start += count
