"""The sampler of the contract in NumPy: the same draw as the native one, given the same logits.

Order: penalties, bias, banned ids and mask, temperature, top-k, top-p, min-p; ties go to the lowest id; then the
greatest z - log E wins, E exponential noise keyed by (seed, position, choice, token id). A sum within float rounding of
a top-p boundary, or two scores as near, may fall the other way than in the native sampler.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.ops.base import Drawn
from octavo.ops.numeric import F32

_U32 = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_GREEDY_BELOW = 1e-5
"""Lower temperatures draw the greatest logit."""
_HOPELESS = -26.0
"""No token so far below the greatest is ever drawn."""
_WEYL = (0x9E3779B9, 0xBB67AE85)


class ReferenceSample:
    """How to draw one row. See `ops.base.SampleRow`."""

    def __init__(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        choice: int,
        num_logprobs: int,
    ) -> None:
        self.temperature = float(temperature)
        self.top_k = int(top_k)
        self.top_p = float(top_p)
        self.min_p = float(min_p)
        self.seed = int(seed)
        self.choice = int(choice)
        self.num_logprobs = int(num_logprobs)
        self.position = 0
        self.given = -1
        self.penalties: tuple[float, float, float, Any, Any] | None = None
        self.bias: tuple[Any, Any] | None = None
        self.banned: Any | None = None
        self.mask: Any | None = None

    @classmethod
    def greedy(cls) -> ReferenceSample:
        """Draws the greatest logit."""
        return cls(0.0, 0, 1.0, 0.0, 0, 0, -1)

    def set_penalties(
        self,
        repetition: float,
        presence: float,
        frequency: float,
        prompt_counts: Any,
        output_counts: Any,
    ) -> None:
        self.penalties = (repetition, presence, frequency, prompt_counts, output_counts)

    def set_bias(self, ids: Any, values: Any) -> None:
        self.bias = (ids, values)

    def set_banned(self, ids: Any | None) -> None:
        self.banned = ids

    def set_mask(self, mask: Any | None) -> None:
        self.mask = mask


def philox(seed: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Philox4x32-10 of counters [n, 4] under a 64-bit key; uint32 [n, 4]."""
    c0, c1, c2, c3 = (counters[:, i] & _U32 for i in range(4))
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & _U32,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & _U32,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=1).astype(np.uint32)


def noise(seed: int, position: int, choice: int, vocab: int) -> F32:
    """log E of every token id below `vocab`, where E is exponential."""
    groups = -(-vocab // 4)
    counters = np.zeros((groups, 4), np.uint64)
    counters[:, 0] = np.arange(groups)
    counters[:, 1] = position
    counters[:, 2] = choice
    words = philox(seed, counters).reshape(-1)[:vocab]
    halves = (words.astype(np.float64) + 0.5).astype(np.float32)  # rounded once
    f = np.minimum(halves * np.float32(2**-32), np.float32(1 - 2**-24))
    return np.log(-np.log1p(-f))


def processed(logits: F32, sample: ReferenceSample) -> F32:
    """The logits after penalties, bias, bans and mask; -inf cannot be drawn."""
    z = logits.astype(np.float32).copy()
    if sample.penalties is not None:
        repetition, presence, frequency, prompt, output = sample.penalties
        out = np.zeros(len(z), np.int32) if output is None else np.asarray(output)[: len(z)]
        seen = out > 0 if prompt is None else (out > 0) | (np.asarray(prompt)[: len(z)] > 0)
        r = np.float32(repetition)
        z = np.where(seen, np.where(z > 0, z / r, z * r), z)
        z = z - np.float32(frequency) * out.astype(np.float32)
        z = z - np.where(out > 0, np.float32(presence), np.float32(0))
    if sample.bias is not None:
        ids, values = sample.bias
        inside = np.asarray(ids) < len(z)
        z[np.asarray(ids)[inside]] += np.asarray(values, np.float32)[inside]
    if sample.banned is not None:
        banned = np.asarray(sample.banned)
        z[banned[banned < len(z)]] = -np.inf
    if sample.mask is not None:
        bits = np.unpackbits(np.asarray(sample.mask, np.uint32).view(np.uint8), bitorder="little")
        z[bits[: len(z)] == 0] = -np.inf
    return z


def _truncate(z: F32, sample: ReferenceSample) -> F32:
    """Top-k, top-p and min-p over z, whose greatest is 0; what is cut becomes -inf."""
    order = np.lexsort((np.arange(len(z)), -z))
    order = order[: sample.top_k] if sample.top_k else order
    p = np.exp(z[order])
    keep = np.ones(len(order), bool)
    if sample.top_p < 1:
        before = np.cumsum(p, dtype=np.float32) - p
        keep &= before < np.float32(sample.top_p) * p.sum(dtype=np.float32)
    if sample.min_p > 0:
        keep &= p >= np.float32(sample.min_p)
    keep &= z[order] > _HOPELESS
    cut = np.full_like(z, -np.inf)
    cut[order[keep]] = z[order[keep]]
    return cut


def _logprobs(logits: F32, token: int, count: int) -> tuple[float, list[int], list[float]]:
    top = logits.max()
    lse = np.float32(top + np.log(np.exp(logits - top).sum(dtype=np.float32)))
    order = np.lexsort((np.arange(len(logits)), -logits))[:count]
    return (
        float(logits[token] - lse),
        [int(i) for i in order],
        [float(logits[i] - lse) for i in order],
    )


def rank(logits: F32, token: int) -> int:
    """1 + how many tokens come before this one, ties by lowest id."""
    return 1 + int((logits > logits[token]).sum()) + int((logits[:token] == logits[token]).sum())


def is_greedy(sample: ReferenceSample) -> bool:
    """The greatest logit is drawn."""
    return sample.temperature < _GREEDY_BELOW or sample.top_k == 1


def shaped(logits: F32, sample: ReferenceSample) -> F32:
    """Logits of the distribution that is drawn from: processed, over the temperature, cut; the greatest is 0."""
    z = processed(logits, sample)
    return _truncate((z - z.max()) / np.float32(sample.temperature), sample)


def logprobs_of(logits: F32, token: int, sample: ReferenceSample) -> tuple[float, list[int], list[float]]:
    """Log-probabilities as the sample asks for them, of the raw logits."""
    if sample.num_logprobs < 0:
        return 0.0, [], []
    return _logprobs(logits, token, sample.num_logprobs)


def draw(logits: F32, sample: ReferenceSample) -> Drawn:
    """One token from one row, or -1 where the row holds a NaN or nothing may be drawn."""
    z = processed(logits, sample)
    if np.isnan(logits).any() or not np.isfinite(z.max()):
        return -1, 0.0, [], []
    if sample.given >= 0:
        return sample.given, *_logprobs(logits, sample.given, sample.num_logprobs)
    if sample.temperature >= _GREEDY_BELOW:
        z = _truncate((z - z.max()) / np.float32(sample.temperature), sample)
        z = z - noise(sample.seed, sample.position, sample.choice, len(z))
    token = int(np.argmax(z))
    if sample.num_logprobs < 0:
        return token, 0.0, [], []
    return token, *_logprobs(logits, token, sample.num_logprobs)
