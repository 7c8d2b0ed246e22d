"""The rejection-sampling verifier against the exact distribution, a toy's and SmolLM2's, and a broken one beside it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.config import EngineConfig, KVConfig, ModelConfig
from octavo.execution.factory import build_executor
from octavo.models.store import default_model
from octavo.models.tokenizer import load_tokenizer
from octavo.ops.reference.sampler import ReferenceSample, shaped
from octavo.speculative.rejection import Place, Target, judge, target_of
from octavo.types import NewSlot, SamplingParams
from tests.support.chi import chi_square

F64 = npt.NDArray[np.float64]
TEXT = "The three things that I like best about the sea are"
P = 0.001
SHORT_P = 1e-5
"""Of tests that are run often."""
BROKEN = 1e-6


def rejection(short: bool) -> dict[str, Any]:
    """50 000 draws a case; short: 4 000, on the toy alone."""
    draws = 4000 if short else 50_000
    toy = np.array([2.0, 1.5, 1.4, 0.3, 0.0, -0.5, -2.0, 0.9, 1.1], np.float32)
    targets = {"toy": _target(toy, 1.0)}
    if not short:
        logits = _smollm()
        targets |= {f"SmolLM2 T={t}": _target(logits, t) for t in (0.8, 1.3)}
    seed = secrets.randbits(60)
    values, broken = {}, {}
    for name, target in targets.items():
        order = np.argsort(-target.p)
        for rank in (0, 1, len(order) - 1):
            guess = int(target.ids[order[rank]])
            values[f"{name}, guess {rank}"] = _p_value(judge, target, guess, None, draws, seed)
        q = target.p**0.5
        values[f"{name}, drawn guesses"] = _p_value(judge, target, None, q / q.sum(), draws, seed)
        broken[name] = _p_value(_draws_from_all, target, int(target.ids[order[0]]), None, draws, seed)
    worst, best = min(values.values()), max(broken.values())
    least = SHORT_P if short else P
    return {
        "bar": f"{draws} draws, chi-square p > {least} against the exact distribution; a broken verifier is caught",
        "figure": f"p from {worst:.3g} to {max(values.values()):.3g} in {len(values)} cases; broken: {best:.2g}; "
        f"seed {seed}",
        "met": worst > least and best < BROKEN,
        "details": {"values": values, "broken": broken},
    }


def _target(logits: npt.NDArray[np.float32], temperature: float) -> Target:
    return target_of(shaped(logits, ReferenceSample(temperature, 50, 0.98, 0.0, 0, 0, -1)))


def _draws_from_all(target: Target, guess: int, place: Place, q: F64 | None) -> tuple[int, bool]:
    """Wrong: after a refusal it draws from p, not from what is left."""
    token, accepted = judge(target, guess, place, q)
    if accepted:
        return token, True
    return judge(target, -1, place._replace(choice=place.choice + 1))


def _p_value(
    judge_one: Callable[..., tuple[int, bool]], target: Target, guess: int | None, q: F64 | None, draws: int, seed: int
) -> float:
    rng = np.random.default_rng(seed)
    guesses = np.full(draws, guess) if guess is not None else rng.choice(target.ids, draws, p=q)
    counts = dict.fromkeys(target.ids.tolist(), 0)
    for number, guessed in enumerate(guesses.tolist()):
        counts[judge_one(target, guessed, Place(seed + number, 11, 0), q)[0]] += 1
    return chi_square(list(counts.values()), target.p.tolist())


def _smollm() -> npt.NDArray[np.float32]:
    """Logits behind a text."""
    path = default_model(lambda what, fraction: None)
    config = EngineConfig(model=ModelConfig(path=str(path)), kv=KVConfig(size_tokens=512))
    executor = build_executor(config, lambda what, fraction: None)
    try:
        tokens = load_tokenizer(path).encode(TEXT)
        new = NewSlot(
            slot=0,
            request_id=0,
            tokens=tokens,
            num_prompt=len(tokens),
            params=SamplingParams(max_tokens=1),
            seed=0,
            choice=0,
            cached_blocks=((),),
        )
        return executor.prompt_logits(new, (tuple(range(len(tokens) // 32 + 1)),))[-1].copy()
    finally:
        executor.close()
