"""A mixture of experts as functions of arrays; see `functions.py` for what `rounded` means.

Owns nothing; off switch: none, the model's file says what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.ops.numeric import F32, I32
from octavo.ops.reference import functions as fn


@dataclass(frozen=True)
class Choice:
    """How a row picks its experts, and what lies between an expert's products."""

    top_k: int
    renormalise: bool
    act: str


def route(x: F32, router: F32, choice: Choice) -> tuple[I32, F32]:
    """(ids, weights), [rows, top_k]: the greatest probabilities in descending order, ties to the lowest id."""
    logits = fn.linear(x, router)
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True, dtype=np.float32)
    ids = np.argsort(-p, axis=-1, kind="stable")[:, : choice.top_k].astype(np.int32)
    weights = np.take_along_axis(p, ids, axis=-1)
    if choice.renormalise:
        weights = weights / weights.sum(axis=-1, keepdims=True, dtype=np.float32)
    return ids, weights


def moe(x: F32, router: F32, experts: Sequence[Sequence[F32]], choice: Choice, rounded: bool) -> F32:
    """The sum over slots of weight times expert's output; experts are (gate, up, down)."""
    ids, weights = route(x, router, choice)
    act = fn.gelu_mul if choice.act == "gelu" else fn.silu_mul
    outputs = np.zeros((*ids.shape, x.shape[1]), np.float32)
    for expert in np.unique(ids):
        rows, slots = np.nonzero(ids == expert)
        gate, up, down = experts[expert]
        both = np.concatenate((fn.linear(x[rows], gate), fn.linear(x[rows], up)), axis=-1)
        outputs[rows, slots] = fn.linear(act(both, rounded), down)
    y = np.zeros_like(x)
    for slot in range(choice.top_k):
        y = y + weights[:, slot, None] * outputs[:, slot]
    return y


def gated_add(x: F32, gate: F32, residual: F32) -> F32:
    with np.errstate(over="ignore"):
        return residual + x / (1 + np.exp(-gate))
