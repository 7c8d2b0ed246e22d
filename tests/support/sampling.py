"""The sampler's contract (docs/numerics.md: sampling) in NumPy, slow and direct."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from tests.support.contract import F32, const, exp, lane_sum, log, log1p

MASK = np.uint64(0xFFFFFFFF)


def philox(counters: NDArray[np.uint64], seed: int) -> NDArray[np.uint32]:
    """Philox4x32-10 of counters [n, 4]."""
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & MASK, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def noise_logs(vocab: int, seed: int, position: int, choice: int) -> F32:
    """log E of every token."""
    n = -(-vocab // 4)
    counters = np.zeros((n, 4), np.uint64)
    counters[:, 0], counters[:, 1], counters[:, 2] = np.arange(n), position, choice
    x = philox(counters, seed).reshape(-1)[:vocab]
    f = ((x.astype(np.float64) + 0.5).astype(np.float32) * const(2.0**-32)).astype(np.float32)
    return log(-log1p(-np.minimum(f, const(1 - 2.0**-24))))


@dataclass(frozen=True)
class Row:
    """One row's parameters, as the native Sample takes them."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0
    position: int = 0
    choice: int = 0
    num_logprobs: int = -1
    prompt: NDArray[np.int32] | None = None
    output: NDArray[np.int32] | None = None
    bias: dict[int, float] = field(default_factory=dict)
    banned: tuple[int, ...] = ()
    allowed: NDArray[np.bool_] | None = None

    def native(self) -> _native.Sample:
        s = _native.Sample(
            self.temperature, self.top_k, self.top_p, self.min_p, self.seed, self.choice, self.num_logprobs
        )
        s.position = self.position
        if self.prompt is not None or self.output is not None:
            s.set_penalties(self.repetition, self.presence, self.frequency, self.prompt, self.output)
        if self.bias:
            s.set_bias(np.array(list(self.bias), np.int32), np.array(list(self.bias.values()), np.float32))
        if self.banned:
            s.set_banned(np.array(self.banned, np.int32))
        if self.allowed is not None:
            padded = np.pad(self.allowed, (0, -len(self.allowed) % 32))
            s.set_mask(np.packbits(padded, bitorder="little").view(np.uint32))
        return s


def penalised(x: F32, row: Row) -> F32:
    none = np.zeros(len(x), np.int32)
    prompt, output = (none if c is None else c for c in (row.prompt, row.output))
    x, said = x.copy(), (prompt > 0) | (output > 0)
    repeated = np.where(x > 0, x / const(row.repetition), x * const(row.repetition))
    x = np.where(said & (row.repetition != 1), repeated, x)
    x = np.where(output > 0, x - const(row.frequency) * output.astype(np.float32), x)
    return np.where(output > 0, x - const(row.presence), x)


def processed(x: F32, row: Row) -> F32:
    x = penalised(x, row)
    for token, value in row.bias.items():
        x[token] += const(value)
    if row.allowed is not None:
        x[~row.allowed] = -np.inf
    x[list(row.banned)] = -np.inf
    return x


def kept_by_top_p(z: F32, e: F32, top_p: float) -> NDArray[np.bool_]:
    goal = const(top_p) * lane_sum(e)
    values = np.unique(z[z > -np.inf])[::-1]  # the greatest value whose tokens and better weigh enough
    low, high = 0, len(values) - 1
    while low < high:
        mid = (low + high) // 2
        if lane_sum(np.where(z >= values[mid], e, const(0))) >= goal:
            high = mid
        else:
            low = mid + 1
    keep = z > values[low]
    total = lane_sum(np.where(keep, e, const(0)))
    for token in np.flatnonzero(z == values[low]):
        keep[token] = True
        total = total + e[token]
        if total >= goal:
            break
    return keep


def draw(logits: F32, row: Row) -> int:
    if np.isnan(logits).any():
        return -1
    x = processed(logits, row)
    if not np.isfinite(x.max()):
        return -1
    if row.temperature < 1e-5 or row.top_k == 1:
        return int(x.argmax())
    z = (x - x.max()) / const(row.temperature)
    if 0 < row.top_k < len(z):
        order = np.lexsort((np.arange(len(z)), -z))
        z[order[row.top_k :]] = -np.inf
    e = exp(z)
    if row.top_p < 1:
        z[~kept_by_top_p(z, e, row.top_p)] = -np.inf
    z[exp(z) < const(row.min_p)] = -np.inf
    return int((z - noise_logs(len(z), row.seed, row.position, row.choice)).argmax())


def logprobs(logits: F32) -> F32:
    shifted = logits - logits.max()
    return np.asarray(shifted - log(lane_sum(exp(shifted)))[0], np.float32)
