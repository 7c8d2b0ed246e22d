"""Tables of the rotary embedding, computed in double and rounded to float once, at load."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.models.spec import ModelSpec

F32 = npt.NDArray[np.float32]


def rope_tables(spec: ModelSpec, positions: int) -> tuple[F32, F32]:
    """cos and sin, [positions, head_dim / 2]."""
    half = spec.head_dim // 2
    frequencies = spec.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
