"""Tables of the rotary embedding, computed in double and rounded to float once, at load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.models.spec import ModelSpec

F32 = npt.NDArray[np.float32]


def rope_tables(spec: ModelSpec, positions: int) -> list[tuple[F32, F32]]:
    """cos and sin, [positions, rotary / 2], of each of the model's rotations."""
    half = spec.head_dim // 2
    return [_table([spec.rope_theta ** (-i / half) for i in range(half)], 1.0, positions)]


def _table(inverse_frequencies: Sequence[float], scale: float, positions: int) -> tuple[F32, F32]:
    """Angles are position * inverse frequency; `scale` multiplies cos and sin."""
    angles = np.arange(positions, dtype=np.float64)[:, None] * np.asarray(inverse_frequencies, np.float64)
    return (np.cos(angles) * scale).astype(np.float32), (np.sin(angles) * scale).astype(np.float32)
