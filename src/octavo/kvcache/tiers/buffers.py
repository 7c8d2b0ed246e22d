"""Memory for blocks on their way to the disk: so many buffers, made and touched when the tier starts.

Each buffer is taken by the engine's thread, which copies a block into it, and given back by the thread that wrote it.
New memory would cost the engine's thread more than the copy: the system clears every page of it at its first use.

Life: with the tier. Its users guard it. Off switch: none of its own; no `--kv-disk`, no buffers.
"""

from __future__ import annotations

import contextlib
import mmap

_PAGE = mmap.PAGESIZE


class Buffers:
    """See the module."""

    def __init__(self, size: int, count: int) -> None:
        self._free: list[memoryview] = []
        if not count:
            return
        memory = mmap.mmap(-1, size * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a system without huge pages has small ones
            memory.madvise(mmap.MADV_HUGEPAGE)
        view = memoryview(memory)
        touched = view[::_PAGE]
        touched[:] = bytes(len(touched))
        self._free = [view[start : start + size] for start in range(0, size * count, size)]

    @property
    def free(self) -> int:
        """Buffers that nobody has."""
        return len(self._free)

    def take(self) -> memoryview | None:
        """The one given back last, which caches may still hold; None where all are in use."""
        return self._free.pop() if self._free else None

    def give(self, buffer: memoryview) -> None:
        """Its content is no longer needed."""
        self._free.append(buffer)
