"""Streams a checkpoint's tensors into the new file: a tensor at a time, rows in pieces, rounded only where planned.

Owns the count of what was changed by rounding, which is told at the end. Off switch: none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from octavo.models.convert.files import TensorFile
from octavo.models.convert.plan import Piece, Plan
from octavo.models.names import Naming
from octavo.models.spec import Checkpoint, Tensor
from octavo.ops.encode import encode
from octavo.ops.numeric import F32, expand, row_bytes

Progress = Callable[[str, float | None], None]
_PIECE = 1 << 20
"""Values converted at a time."""


def stream(checkpoint: Checkpoint, plan: Plan, file: TensorFile, progress: Progress) -> list[str]:
    """Writes every tensor of the plan; the sentences say what rounding changed."""
    changed: Counter[tuple[str, str]] = Counter()
    left = set(plan.pieces)
    for tensor in checkpoint.tensors():
        piece = plan.pieces.get(tensor.name)
        if piece is None:
            continue
        if _write(tensor, piece, plan.naming, file):
            changed[(tensor.source, piece.type)] += 1
        left.remove(tensor.name)
        progress("converting", 1 - len(left) / len(plan.pieces))
    assert not left, sorted(left)
    return [f"{count} tensors are rounded from {old} to {new}" for (old, new), count in sorted(changed.items())]


def write_floats(tensors: Mapping[str, F32], file: TensorFile) -> None:
    """Small float32 tensors that no rule names."""
    for name, values in tensors.items():
        file.write(name, 0, values)


def _write(tensor: Tensor, piece: Piece, naming: Naming, file: TensorFile) -> bool:
    """True where a value changed."""
    rule = piece.rule
    rows, columns = (1, tensor.shape[0]) if len(tensor.shape) == 1 else tensor.shape
    data = tensor.data
    if naming == "gguf" and rule.gguf_interleaved_heads is not None:
        data = interleaved_rows(data, rule.gguf_interleaved_heads, tensor.shape[0])
    minus_one = naming == "hf" and rule.hf_plus_one
    if tensor.source == piece.type and not minus_one:
        file.write(piece.target, piece.offset, data)
        return False
    before, after = row_bytes(tensor.source, columns), row_bytes(piece.type, columns)
    step = max(1, _PIECE // columns)
    changed = False
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        values = expand(tensor.source, (end - begin, columns), data[begin * before : end * before])
        if minus_one:
            values -= np.float32(1)
        made = np.ascontiguousarray(encode(piece.type, values))
        file.write(piece.target, piece.offset + begin * after, made)
        changed = changed or not _same(values, expand(piece.type, values.shape, made.reshape(-1).data))
    return changed


def _same(one: F32, other: F32) -> bool:
    return bool(((one == other) | (np.isnan(one) & np.isnan(other))).all())


def interleaved_rows(data: memoryview, heads: int, rows: int) -> memoryview:
    """Rows of each head from the half-split order to GGUF's (0, d/2, 1, d/2 + 1, ...). Copies."""
    table = np.frombuffer(data, np.uint8).reshape(heads, 2, rows // heads // 2, len(data) // rows)
    return np.ascontiguousarray(table.swapaxes(1, 2)).reshape(-1).data
