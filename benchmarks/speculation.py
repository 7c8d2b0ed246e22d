"""Speculation by n-grams on texts: three kinds of prompts that repeat their documents, and many streams at once.

`ngram`: one stream, greedy, drafts on against off in turns. A prompt counts unless its answer repeats itself (the share
of distinct 4-grams below `LEAST_DISTINCT`: a loop is easy to guess) or is too short to time; all are reported. Beside
the ratio stands what the run's own steps predict: A t(1) / (t(rows) + draft), A the tokens a step, t(1) a step without
drafts, t(rows) one with the rows that were verified, draft the time of guessing.
`streams`: 1, 4, 16 and 64 sampled answers at once: what adaptation loses where it does not pay.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.bench.ablate import Pair, measure
from octavo.bench.arm import Arm, Run, take_turns
from octavo.bench.stats import paired_ratio
from octavo.bench.workload import Item, Workload
from octavo.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig, SpeculativeConfig
from octavo.models.store import default_model
from octavo.models.tokenizer import load_tokenizer
from octavo.server.text import load_text
from octavo.types import BlockPages, Executor, ModelInfo, StepHandle, StepPlan

TEXTS = Path(__file__).parent / "texts"
KINDS = ("code_edits", "extraction", "json_documents")
BAR, SHARE, FLOOR = 1.8, 0.9, 0.98
LEAST_DISTINCT = 0.6
LEAST_TOKENS = 24
TOKENS = 128


def prompts(kind: str) -> list[str]:
    """Of one kind, in the order of the file."""
    return [text.strip() for text in (TEXTS / f"{kind}.txt").read_text().split("\n===\n")]


def distinct(tokens: Sequence[int]) -> float:
    """Share of different 4-grams."""
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0


class Timed:
    """An executor whose decode steps are timed."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.info: ModelInfo = inner.info
        self.num_blocks = inner.num_blocks
        self.pages: BlockPages = getattr(inner, "pages")  # noqa: B009
        self.seconds: list[float] = []
        """Of each step that computes nothing but decodes."""
        self.rows: list[int] = []

    def submit(self, plan: StepPlan) -> StepHandle:
        began = time.perf_counter()
        handle = self._inner.submit(plan)
        handle.result()
        if all(work.count == 1 + len(work.drafts) for work in plan.work):
            self.seconds.append(time.perf_counter() - began)
            self.rows.append(sum(work.count for work in plan.work))
        return handle

    def close(self) -> None:
        return None


@dataclass
class Side:
    """An arm with its timed executor."""

    arm: Arm
    timed: Timed


def _side(name: str, config: EngineConfig) -> Side:
    made: list[Timed] = []

    def wrap(inner: Executor) -> Executor:
        made.append(Timed(inner))
        return made[-1]

    return Side(Arm(name, config, wrap), made[0])


def _config(streams: int = 1) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(default_model(lambda what, fraction: None))),
        kv=KVConfig(size_tokens=2048 + 512 * streams),
        scheduler=SchedulerConfig(max_num_seqs=streams),
    )


def _drafting(config: EngineConfig) -> EngineConfig:
    return replace(config, speculative=SpeculativeConfig("ngram"))


def ngram(short: bool) -> dict[str, Any]:
    """All prompts of each kind; short: one of each, in which speed is told and does not count."""
    config = _config()
    text = load_text(load_tokenizer(config.model.path), None)
    plain, drafting = _side("off", config), _side("ngram", _drafting(config))
    details: dict[str, Any] = {}
    try:
        for kind in KINDS:
            chosen = prompts(kind)[: 1 if short else None]
            chats = [text.chat([{"role": "user", "content": prompt}]) for prompt in chosen]
            details[kind] = _kind(plain, drafting, chats, 48 if short else TOKENS)
    finally:
        plain.arm.close()
        drafting.arm.close()
        text.close()
    same = not any(found["different"] for found in details.values())
    met = same and (short or all(_meets(found) for found in details.values()))
    figures = [
        f"{kind.replace('_', ' ')} {found['ratio']['text']}, {found['share']:.2f} of the predicted "
        f"{found['predicted']:.2f}, {found['tokens_a_step']:.2f} tokens a step, {found['counted']} of "
        f"{found['prompts']} prompts"
        for kind, found in details.items()
        if found["ratio"] is not None
    ]
    return {
        "bar": f"decode at least {BAR} times as fast, at least {SHARE} of what its own steps predict, the same tokens",
        "figure": "; ".join(figures) or "too few answers counted",
        "met": met,
        "details": details,
    }


def _meets(found: dict[str, Any]) -> bool:
    return found["ratio"] is not None and found["ratio"]["value"] >= BAR and found["share"] >= SHARE


def _kind(plain: Side, drafting: Side, chats: list[list[int]], tokens: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for side in (plain, drafting):
        side.arm.run(_work(chats[0], tokens))
    for number, chat in enumerate(chats):
        rows.append(_one(plain, drafting, _work(chat, tokens), number))
    counted = [row for row in rows if row["counts"]]
    found: dict[str, Any] = {
        "prompts": len(rows),
        "counted": len(counted),
        "different": sum(not row["same"] for row in rows),
        "ratio": None,
        "rows": rows,
    }
    if len(counted) >= 6:
        ratio = paired_ratio([row["off"] for row in counted], [row["on"] for row in counted], 1)
        found["ratio"] = {"value": ratio.value, "low": ratio.low, "high": ratio.high, "text": ratio.text()}
        found["predicted"] = _mean(counted, "predicted")
        found["share"] = _mean(counted, "share")
        found["tokens_a_step"] = _mean(counted, "tokens_a_step")
    return found


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def _work(chat: list[int], tokens: int) -> Workload:
    return Workload((Item(tuple(chat), tokens),), 0, ignore_eos=False)


def _one(plain: Side, drafting: Side, work: Workload, number: int) -> dict[str, Any]:
    """One prompt on both sides; who goes first changes from prompt to prompt."""
    before = drafting.arm.stats().draft_seconds
    for side in (plain, drafting):
        side.timed.seconds.clear()
        side.timed.rows.clear()
    if number % 2:
        off, on = take_turns((plain.arm, drafting.arm), work)
    else:
        on, off = take_turns((drafting.arm, plain.arm), work)
    output = off.outputs[0]
    row: dict[str, Any] = {
        "tokens": len(output),
        "distinct": round(distinct(output), 3),
        "same": off.outputs == on.outputs,
        "counts": False,
    }
    steps = len(drafting.timed.seconds)
    if len(output) < LEAST_TOKENS or not steps:
        return row
    draft = (drafting.arm.stats().draft_seconds - before) / steps
    one = sum(plain.timed.seconds) / len(plain.timed.seconds)
    verified = sum(drafting.timed.seconds) / steps
    rate = (len(output) - 1) / steps
    row |= {
        "off": _decode_rate(off),
        "on": _decode_rate(on),
        "tokens_a_step": rate,
        "rows_a_step": sum(drafting.timed.rows) / steps,
        "step_ms": one * 1e3,
        "verify_ms": verified * 1e3,
        "draft_ms": draft * 1e3,
        "predicted": rate * one / (verified + draft),
        "counts": row["distinct"] >= LEAST_DISTINCT,
    }
    row["ratio"] = row["on"] / row["off"]
    row["share"] = row["ratio"] / row["predicted"]
    return row


def _decode_rate(run: Run) -> float:
    return (run.tokens - 1) / (run.last[0] - run.first[0])


def streams(short: bool) -> dict[str, Any]:
    """30 pairs of each number of streams; short: six of one and of four."""
    config = _config()
    text = load_text(load_tokenizer(config.model.path), None)
    chats = [text.chat([{"role": "user", "content": prompt}]) for kind in KINDS for prompt in prompts(kind)]
    text.close()
    seed = secrets.randbelow(1 << 31)
    found = {count: _streams(chats, count, short, seed) for count in ((1, 4) if short else (1, 4, 16, 64))}
    sound = all(one.sound for one in found.values())
    return {
        "bar": f"with adaptation never below {FLOOR} of no speculation (95 % bound of 30 pairs), the same tokens",
        "figure": "; ".join(f"{count}: {one.ratio.text()}" for count, one in found.items()) + f"; seed {seed}",
        "met": sound and (short or all(one.ratio.low >= FLOOR for one in found.values())),
        "details": {str(count): one.text() for count, one in found.items()},
    }


def _streams(chats: list[list[int]], count: int, short: bool, seed: int) -> Any:
    def make(vocab: int, number: int) -> Workload:
        chosen = [chats[(number + i) % len(chats)] for i in range(count)]
        items = tuple(Item(tuple(chat), 16 if short else 48) for chat in chosen)
        return Workload(items, number, temperature=0.8)

    base = _config(count)
    pair = Pair(
        f"n-gram drafts on (B) against off (A), {count} sampled streams", lambda config: config, _drafting, make
    )
    with Arm("A", pair.a(base)) as a, Arm("B", pair.b(base)) as b:
        return measure(pair, (a, b), 6 if short else 30, seed)
