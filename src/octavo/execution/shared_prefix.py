"""Shared-prefix attention: which sequences of a step begin with the same physical blocks.

Found anew each step from the block tables: a sequence's whole partitions that lie behind it, each as the bytes of its
block ids. Sequences that name the same blocks from the first partition on share those partitions; the native kernel
reads them once for all (native/src/kernels/attention_shared.inl) and the bits stay. Blocks of computed positions never
change while a request runs, so a sequence's list only grows, once in 512 tokens; as long as no list changes, the
finding of the step before is used again.
Off: `ExecutionConfig.shared_prefix_attention`, which puts `NoSharing` in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.config import PARTITION
from octavo.execution.slots import Slot, Slots
from octavo.types import SeqWork

I32 = npt.NDArray[np.int32]
Shared = tuple[I32, I32]
"""One group's runs, [runs, 4] of (first member, members, from partition, to partition), and the members: sequences."""
Partitions = tuple[bytes, ...]
MAX_ROWS = 4
"""Rows of a sequence that may share: chunks of more read each page for many rows already."""


class Sharing(Protocol):
    """What finds shared prefixes."""

    def find(self, slots: Slots, works: Sequence[tuple[SeqWork, Slot]]) -> list[Shared] | None:
        """One entry a group; None where no two sequences share anything."""


class NoSharing:
    """Every sequence reads its own pages."""

    def find(self, slots: Slots, works: Sequence[tuple[SeqWork, Slot]]) -> list[Shared] | None:
        return None


class SharedPrefixes:
    """See the module."""

    def __init__(self, windows: Sequence[int | None], block_size: int) -> None:
        """windows: of each group; those with one share nothing, for a window soon leaves the prefix."""
        self._groups = [number for number, window in enumerate(windows) if window is None]
        self._count = len(windows)
        self._block_size = block_size
        self._last: list[list[Partitions]] = []
        self._found: list[Shared] | None = None

    def find(self, slots: Slots, works: Sequence[tuple[SeqWork, Slot]]) -> list[Shared] | None:
        lists: list[list[Partitions]] = [[] for _ in self._groups]
        for work, slot in works:
            parts = work.start // PARTITION
            for number, group in enumerate(self._groups):
                own = slot.partitions[group]
                if len(own) != parts:
                    own = self._partitions(slots.tables[group][work.slot], own, parts)
                    slot.partitions[group] = own
                lists[number].append(own if work.count <= MAX_ROWS else ())
        if lists != self._last:
            self._last = lists
            self._found = self._group(lists)
        return self._found

    def _partitions(self, table: I32, own: Partitions, parts: int) -> Partitions:
        """The first `parts` partitions of a sequence, of which some may be known."""
        size = self._block_size
        ends = [(part * PARTITION // size, -(-(part + 1) * PARTITION // size)) for part in range(len(own), parts)]
        return own[:parts] + tuple([table[first:end].tobytes() for first, end in ends])

    def _group(self, lists: list[list[Partitions]]) -> list[Shared] | None:
        none = (np.zeros((0, 4), np.int32), np.zeros(0, np.int32))
        found = [none] * self._count
        for group, sequences in zip(self._groups, lists, strict=True):
            runs = shared_runs(sequences)
            if runs:
                rows, members = [], []
                for who, first, end in runs:
                    rows.append((len(members), len(who), first, end))
                    members += who
                found[group] = (np.array(rows, np.int32), np.array(members, np.int32))
        return found if any(len(runs) for runs, _ in found) else None


def shared_runs(sequences: Sequence[Partitions]) -> list[tuple[list[int], int, int]]:
    """(members, from partition, to partition) of each run of partitions that the same sequences share.

    A sequence shares from its first partition on: what comes after one that it reads alone is its own.
    """
    runs: list[tuple[list[int], int, int]] = []
    together = [(list(range(len(sequences))), 0)]
    while together:
        members, part = together.pop()
        end = part
        while True:
            same: dict[bytes, list[int]] = {}
            for member in members:
                own = sequences[member]
                if len(own) > end:
                    same.setdefault(own[end], []).append(member)
            groups = [group for group in same.values() if len(group) > 1]
            if groups != [members]:
                break
            end += 1
        if end > part:
            runs.append((members, part, end))
        together += [(group, end) for group in groups]
    runs.sort(key=lambda run: (run[1], run[0]))
    return runs


def make_sharing(on: bool, windows: Sequence[int | None], block_size: int) -> Sharing:
    """What the configuration asks for."""
    return SharedPrefixes(windows, block_size) if on and None in windows else NoSharing()
