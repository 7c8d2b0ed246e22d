"""Packed weights: one arena in the layout that the native kernels read.

Life: `plan_arena` says where each tensor will lie, from names and types alone; `open_arena` maps the arena that an
earlier start left in the cache directory, or packs it once, under a lock, into a temporary file that is renamed when
complete. A later start neither hashes nor packs. Where the directory cannot be written the arena lives in memory alone,
and the caller is told (that is also the off switch: `directory=None`). Packing takes a few megabytes beside the arena:
a matrix goes through in pieces of whole column blocks, and pages of the model's file are given back once packed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from filelock import FileLock

from octavo import _native
from octavo.ops.base import SourceTensor
from octavo.ops.numeric import expand
from octavo.ops.pages import give_back

logger = logging.getLogger(__name__)

FORMAT_VERSION = 3
"""Of the file; the layout of the matrices in it speaks for itself (`layout_id`)."""

_ALIGN = 64
DATA_OFFSET = 2 << 20
_CHECKSUM_BYTES = 8
"""The data start on a huge page; before them lies a digest of the index (of tens of thousands of tensors at times)."""

Progress = Callable[[str, float | None], None]
Tensors = Callable[[], Iterable[SourceTensor]]
"""Starts one pass over the checkpoint."""

_QUANTISED = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "G4", "G8",
)  # fmt: skip
_FLOATS = ("F32", "F16", "BF16")
_KINDS = {
    "bf16": {**dict.fromkeys(_FLOATS, "bf16"), **{source: source.lower() for source in _QUANTISED}},
    "float32": dict.fromkeys((*_FLOATS, *_QUANTISED), "f32"),
}
"""Kind of a matrix by precision and type: every quantised type keeps its bits on the bf16 path."""

_PIECE_BYTES = 2 << 20
"""Packed bytes written at a time, where one column block is not more."""
_BLOCK_ROWS = 16


@dataclass(frozen=True)
class Entry:
    """One tensor of the arena. Vectors are plain floats: kind "vector", n = 1."""

    kind: str
    n: int
    k: int
    offset: int
    size: int


@dataclass(frozen=True)
class ArenaPlan:
    """Where every tensor lies."""

    entries: dict[str, Entry]
    size: int
    precision: str
    sources: tuple[str, ...]
    """Types of the matrices in the file."""

    def rounding(self, dequantisation: str) -> str | None:
        """What the user must know of how this precision changes the file's values; None: nothing changes."""
        if self.precision == "float32":
            return None
        rounded = [s for s in self.sources if s in ("F32", "F16")]
        expanded = [s for s in self.sources if s in _QUANTISED]
        parts = []
        if rounded:
            parts.append(f"{_listed(rounded)} weights are rounded to bf16")
        if expanded:
            inside = (
                "are rounded to bf16 inside products"
                if dequantisation == "expanded"
                else "are multiplied with inputs rounded to bytes"
            )
            parts.append(f"{_listed(expanded)} weights keep their bits and {inside}")
        return "; ".join(parts) or None


def _listed(names: list[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)


def plan_arena(sources: Mapping[str, tuple[str, tuple[int, ...]]], precision: str) -> ArenaPlan:
    """sources: canonical name -> (type, shape), as `Checkpoint.sources()` gives."""
    entries = {}
    offset = 0
    for name, (source, shape) in sources.items():
        if len(shape) == 1:
            kind, n, k = "vector", 1, shape[0]
            size = 4 * k
        else:
            n, k = shape
            kind = _KINDS[precision][source]
            size = _native.packed_bytes(kind, n, k)
        entries[name] = Entry(kind, n, k, offset, size)
        offset += -(-size // _ALIGN) * _ALIGN
    types = tuple(sorted({source for source, shape in sources.values() if len(shape) > 1}))
    return ArenaPlan(entries, offset, precision, types)


@dataclass(frozen=True)
class Arena:
    """The packed weights in memory."""

    plan: ArenaPlan
    buffer: Any
    origin: str
    """"mapped" (from the cache), "packed" (now, and kept in the cache) or "memory" (not kept)."""
    problem: str | None = None
    """Why it was not kept."""
    path: Path | None = None
    """Where it is kept."""

    def weight(self, name: str) -> _native.Weight:
        e = self.plan.entries[name]
        return _native.Weight(self.buffer, e.offset, e.kind, e.n, e.k)

    def vector(self, names: Iterable[str]) -> _native.Weight:
        """Vectors joined into one."""
        parts = []
        for name in names:
            e = self.plan.entries[name]
            assert e.kind == "vector", name
            parts.append(np.frombuffer(self.buffer, np.float32, e.k, e.offset))
        if len(parts) == 1:
            return self.weight(next(iter(names)))
        joined = np.concatenate(parts)
        room = np.empty(joined.size + _ALIGN // 4, np.float32)
        shift = -(room.ctypes.data // 4) % (_ALIGN // 4)
        room[shift : shift + joined.size] = joined
        return _native.Weight(room[shift:], 0, "vector", 1, joined.size)


@functools.cache
def layout_id() -> str:
    """Digest of how this build packs one small matrix of every kind: another layout never reads this one's arenas."""
    digest = hashlib.sha256(str(FORMAT_VERSION).encode())
    n, k = 33, 256
    for source, kind in sorted({*_KINDS["bf16"].items(), ("F32", "f32")}):
        rows = (np.arange(n * _native.source_row_bytes(source, k)) % 113 % 59).astype(np.uint8)
        packed = bytearray(_native.packed_bytes(kind, n, k))
        _native.pack(source, kind, n, k, rows, packed)
        digest.update(packed)
    return digest.hexdigest()[:16]


def open_arena(
    plan: ArenaPlan,
    weights_id: str,
    tensors: Tensors,
    directory: Path | None,
    progress: Progress,
) -> Arena:
    """Maps the cached arena, or packs it; `weights_id` is the digest of the checkpoint's content."""
    if directory is None:
        return _pack_in_memory(plan, tensors, progress, None)
    key = hashlib.sha256(json.dumps([weights_id, layout_id(), plan.precision]).encode()).hexdigest()[:32]
    path = directory / f"{key}.arena"
    buffer = _map(path, plan)
    if buffer is not None:
        return Arena(plan, buffer, "mapped", path=path)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            buffer = _map(path, plan, tell=False)  # the first look told of a damaged one
            if buffer is not None:
                return Arena(plan, buffer, "mapped", path=path)
            _write(path, plan, tensors, progress)
            buffer = _map(path, plan)
    except OSError as error:
        return _pack_in_memory(plan, tensors, progress, f"{directory}: {error.strerror or error}")
    assert buffer is not None, path
    return Arena(plan, buffer, "packed", path=path)


def _index(plan: ArenaPlan) -> bytes:
    body: dict[str, Any] = {"layout": layout_id(), "precision": plan.precision, "size": plan.size}
    body["entries"] = {name: list(asdict(entry).values()) for name, entry in plan.entries.items()}
    return hashlib.sha256(json.dumps(body).encode()).digest()


def _map(path: Path, plan: ArenaPlan, tell: bool = True) -> Any | None:
    """The arena in `path`, if it is there, complete, as planned, and holds what was written."""
    index = _index(plan)
    try:
        with path.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size == DATA_OFFSET + plan.size + _CHECKSUM_BYTES
            if not whole or file.read(len(index)) != index:
                return None
            file.seek(DATA_OFFSET + plan.size)
            written = int.from_bytes(file.read(_CHECKSUM_BYTES), "little")
    except FileNotFoundError:
        return None
    except OSError:
        # The write that follows meets the same error and reports it.
        return None
    buffer = _native.map_arena(str(path), DATA_OFFSET, plan.size)
    if _native.checksum(buffer) == written:
        return buffer
    if tell:
        logger.warning("%s is damaged and is packed again", path)
    return None


def _write(path: Path, plan: ArenaPlan, tensors: Tensors, progress: Progress) -> None:
    """Under the lock. The temporary name is fixed, so what a killed start left is overwritten."""
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, DATA_OFFSET + plan.size + _CHECKSUM_BYTES)
            file.write(_index(plan))
            _pack_all(plan, tensors, _FileRoom(file), progress)
            file.flush()
            total = _native.checksum(_native.map_arena(str(partial), DATA_OFFSET, plan.size))
            file.seek(DATA_OFFSET + plan.size)
            file.write(total.to_bytes(_CHECKSUM_BYTES, "little"))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pack_in_memory(plan: ArenaPlan, tensors: Tensors, progress: Progress, problem: str | None) -> Arena:
    memory = mmap.mmap(-1, max(plan.size, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    _pack_all(plan, tensors, _MemoryRoom(memory), progress)
    return Arena(plan, memory, "memory", problem)


class _Room(Protocol):
    """Where packed bytes go."""

    def piece(self, offset: int, size: int) -> AbstractContextManager[memoryview]:
        """Zeroed or stale bytes of the arena, to be filled inside a `with` block."""


class _FileRoom:
    """One buffer for all pieces: pages of a mapped file would count as this process's memory until they are written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = bytearray()

    @contextmanager
    def piece(self, offset: int, size: int) -> Iterator[memoryview]:
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        yield view
        self._file.seek(DATA_OFFSET + offset)
        self._file.write(view)


class _MemoryRoom:
    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @contextmanager
    def piece(self, offset: int, size: int) -> Iterator[memoryview]:
        with memoryview(self._memory) as whole, whole[offset : offset + size] as view:
            yield view


def _pack_all(plan: ArenaPlan, tensors: Tensors, room: _Room, progress: Progress) -> None:
    """Packs the tensors of the plan; every one is met exactly once."""
    left = set(plan.entries)
    for tensor in tensors():
        entry = plan.entries.get(tensor.name)
        if entry is None:
            continue
        if entry.kind == "vector":
            with room.piece(entry.offset, entry.size) as view:
                view[:] = memoryview(expand(tensor.source, tensor.shape, tensor.data)).cast("B")
        else:
            _pack_matrix(tensor, entry, room)
        left.remove(tensor.name)
        progress("packing weights", 1 - len(left) / len(plan.entries))
    assert not left, sorted(left)


def _pack_matrix(tensor: SourceTensor, entry: Entry, room: _Room) -> None:
    data = tensor.data.cast("B") if tensor.data.ndim != 1 or tensor.data.itemsize != 1 else tensor.data
    row_bytes = _native.source_row_bytes(tensor.source, entry.k)
    block_bytes = _native.packed_bytes(entry.kind, _BLOCK_ROWS, entry.k)
    step = max(1, _PIECE_BYTES // block_bytes) * _BLOCK_ROWS
    for row in range(0, entry.n, step):
        rows = min(step, entry.n - row)
        source = data[row * row_bytes : (row + rows) * row_bytes]
        size = _native.packed_bytes(entry.kind, rows, entry.k)
        with room.piece(entry.offset + row // _BLOCK_ROWS * block_bytes, size) as view:
            try:
                _native.pack(tensor.source, entry.kind, rows, entry.k, source, view, row)
            except ValueError as error:
                raise ValueError(f"tensor {tensor.name}: {error}") from error
        give_back(source)
