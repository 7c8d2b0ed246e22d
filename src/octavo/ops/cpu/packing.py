"""Packed weights: one arena in the layout that the native kernels read.

Life: `plan_arena` says where each tensor will lie, from names and types alone; `open_arena` maps the arena that an
earlier start left in the cache directory, or packs it once, under a lock, into a temporary file that is renamed when
complete. A later start neither hashes nor packs. Where the directory cannot be written the arena lives in memory alone,
and the caller is told (that is also the off switch: `directory=None`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from octavo import _native
from octavo.ops.base import SourceTensor
from octavo.ops.numeric import expand

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

_KINDS = {
    "bf16": {
        "Q4_1": "q4_1",
        "Q8_0": "q8_0",
        "F16": "bf16",
        "BF16": "bf16",
        "F32": "bf16",
    },
    "float32": dict.fromkeys(("Q4_1", "Q8_0", "F16", "BF16", "F32"), "f32"),
}


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

    def rounding(self) -> str | None:
        """What the user must know of how this precision changes the file's values; None: nothing changes."""
        if self.precision == "float32":
            return None
        rounded = [s for s in self.sources if s in ("F32", "F16")]
        expanded = [s for s in self.sources if s in ("Q4_1", "Q8_0")]
        parts = []
        if rounded:
            parts.append(f"{' and '.join(rounded)} weights are rounded to bf16")
        if expanded:
            parts.append(f"{' and '.join(expanded)} weights keep their bits and are rounded to bf16 inside products")
        return "; ".join(parts) or None


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
    n, k = 33, 64
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
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            buffer = _map(path, plan)
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


def _map(path: Path, plan: ArenaPlan) -> Any | None:
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
    logger.warning("%s is damaged and is packed again", path)
    return None


def _write(path: Path, plan: ArenaPlan, tensors: Tensors, progress: Progress) -> None:
    """Under the lock. The temporary name is fixed, so what a killed start left is overwritten."""
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, DATA_OFFSET + plan.size + _CHECKSUM_BYTES)
            file.write(_index(plan))
            for entry, packed in _packed(plan, tensors, progress):
                file.seek(DATA_OFFSET + entry.offset)
                file.write(packed)
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
    for entry, packed in _packed(plan, tensors, progress):
        memory[entry.offset : entry.offset + entry.size] = bytes(packed)
    return Arena(plan, memory, "memory", problem)


def _packed(plan: ArenaPlan, tensors: Tensors, progress: Progress) -> Iterable[tuple[Entry, memoryview]]:
    """Each tensor of the plan, packed; every one is met exactly once."""
    left = set(plan.entries)
    for tensor in tensors():
        entry = plan.entries.get(tensor.name)
        if entry is None:
            continue
        if entry.kind == "vector":
            yield (
                entry,
                memoryview(expand(tensor.source, tensor.shape, tensor.data)).cast("B"),
            )
        else:
            room = bytearray(entry.size)
            _native.pack(tensor.source, entry.kind, entry.n, entry.k, tensor.data, room)
            yield entry, memoryview(room)
        left.remove(tensor.name)
        progress("packing weights", 1 - len(left) / len(plan.entries))
    assert not left, sorted(left)
