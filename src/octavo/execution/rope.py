"""Tables of the rotary embeddings, computed in double and rounded to float once, at load."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.models.spec import ModelSpec, RopeSpec

F32 = npt.NDArray[np.float32]


def rope_tables(spec: ModelSpec, positions: int) -> list[tuple[F32, F32]]:
    """cos and sin, [positions, rotary / 2], of each of the model's rotations, in an engine of that many positions."""
    return [_table(rope, positions) for rope in spec.at_context(positions).ropes]


def _table(rope: RopeSpec, positions: int) -> tuple[F32, F32]:
    angles = np.arange(positions, dtype=np.float64)[:, None] * np.asarray(rope.inverse_frequencies, np.float64)
    return (np.cos(angles) * rope.scale).astype(np.float32), (np.sin(angles) * rope.scale).astype(np.float32)
