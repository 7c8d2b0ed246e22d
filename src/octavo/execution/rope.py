"""Tables of the rotary embeddings, computed in double and rounded to float once, at load."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.models.spec import ModelSpec, RopeSpec

F32 = npt.NDArray[np.float32]

_BAND = 4096
"""Positions computed at once: what is computed in double stays small however long the context."""


def rope_tables(spec: ModelSpec, positions: int) -> list[tuple[F32, F32]]:
    """cos and sin, [positions, rotary / 2], of each of the model's rotations, in an engine of that many positions."""
    return [_table(rope, positions) for rope in spec.at_context(positions).ropes]


def _table(rope: RopeSpec, positions: int) -> tuple[F32, F32]:
    frequencies = np.asarray(rope.inverse_frequencies, np.float64)
    cos, sin = (np.empty((positions, len(frequencies)), np.float32) for _ in range(2))
    for start in range(0, positions, _BAND):
        rows = slice(start, min(start + _BAND, positions))
        angles = np.arange(rows.start, rows.stop, dtype=np.float64)[:, None] * frequencies
        cos[rows], sin[rows] = np.cos(angles) * rope.scale, np.sin(angles) * rope.scale
    return cos, sin
