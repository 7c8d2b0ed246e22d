"""Which requests come when: drawn for closed loops and Poisson arrivals, or read from a trace and scaled.

A prompt is a row of blocks, each the beginning of a stream of tokens that follows from a name: the same name, the same
tokens, so a prefix that two requests share is a prefix of real tokens. Names of a trace's blocks are its hash ids.
"""

from __future__ import annotations

import csv
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from octavo.bench.serve.plan import Plan, TraceUse, Work
from octavo.bench.workload import constant, exponential
from octavo.config import ConfigError

MOONCAKE_BLOCK = 512
"""Tokens that one hash id stands for."""


@dataclass(frozen=True)
class Block:
    """The first `tokens` of the stream called `name`."""

    name: str
    tokens: int


@dataclass(frozen=True)
class Arrival:
    """One request: when, seconds from the start; its prompt; how many tokens are wanted."""

    at: float
    blocks: tuple[Block, ...]
    output: int

    @property
    def prompt(self) -> int:
        return sum(block.tokens for block in self.blocks)


@dataclass(frozen=True)
class TraceRow:
    """A request as a trace has it."""

    at: float
    prompt: int
    output: int
    hashes: tuple[int, ...] | None = None


def drawn(work: Work, seed: int) -> Iterator[Arrival]:
    """Endless requests, all at 0."""
    rng = random.Random(f"{seed}/lengths")
    shared = (Block("shared", work.shared_tokens),) if work.shared_tokens else ()
    least = work.shared_tokens + 1
    prompt = output = None
    if work.lengths == "exponential":
        prompt = exponential(work.prompt_tokens, 4 * work.prompt_tokens)
        output = exponential(work.output_tokens, 4 * work.output_tokens)
    prompt, output = prompt or constant(work.prompt_tokens), output or constant(work.output_tokens)
    for index in itertools.count():
        own = max(least, prompt(rng)) - work.shared_tokens
        yield Arrival(0.0, (*shared, Block(f"own {index}", own)), output(rng))


def poisson(plan: Plan, seed: int) -> list[Arrival]:
    """Gaps of exponential distribution with mean 1 / rate."""
    assert plan.rate is not None
    rng = random.Random(f"{seed}/arrivals")
    at = 0.0
    found: list[Arrival] = []
    for request in drawn(plan.work, seed):
        at += rng.expovariate(plan.rate)
        if (plan.requests and len(found) >= plan.requests) or (plan.seconds and at > plan.seconds):
            return found
        found.append(Arrival(at, request.blocks, request.output))
    return found


# --- traces ----------------------------------------------------------------------------------------


def read_trace(path: str) -> list[TraceRow]:
    """Azure's CSV or Mooncake's JSONL, told apart by the first character. Times count from the first request."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trace {path}: {error}") from error
    rows = _mooncake(path, text) if text.lstrip().startswith("{") else _azure(path, text)
    if not rows:
        raise ConfigError(f"--trace {path} holds no requests")
    rows.sort(key=lambda row: row.at)
    first = rows[0].at
    return [TraceRow(row.at - first, row.prompt, row.output, row.hashes) for row in rows]


def _azure(path: str, text: str) -> list[TraceRow]:
    rows = []
    for number, line in enumerate(csv.DictReader(text.splitlines()), 2):
        try:
            moment = _moment(line["TIMESTAMP"])
            rows.append(TraceRow(moment, int(line["ContextTokens"]), int(line["GeneratedTokens"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"--trace {path}, line {number}: {error!r}; TIMESTAMP, ContextTokens and GeneratedTokens are needed"
            ) from error
    return rows


def _moment(text: str) -> float:
    """Seconds. Azure writes seven digits after the point, and sometimes a zone."""
    date, _, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    whole = datetime.fromisoformat(date + rest[len(digits) :] + ("" if "+" in rest or rest.endswith("Z") else "+00:00"))
    return whole.timestamp() + (float(f"0.{digits}") if digits else 0.0)


def _mooncake(path: str, text: str) -> list[TraceRow]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            hashes = tuple(int(value) for value in row["hash_ids"]) if "hash_ids" in row else None
            rows.append(TraceRow(row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"]), hashes))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"--trace {path}, line {number}: {error!r}; "
                "timestamp, input_length, output_length (and hash_ids) are needed"
            ) from error
    return rows


@dataclass(frozen=True)
class Replay:
    """What of a trace is sent."""

    arrivals: tuple[Arrival, ...]
    left_out: int
    """Requests longer than --max-context."""
    speed: float
    """Seconds of the trace in one of ours."""

    @property
    def prompt_tokens(self) -> int:
        return sum(arrival.prompt for arrival in self.arrivals)

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens that an earlier request of the replay began with too: what an infinite prefix cache saves."""
        seen: set[tuple[str, ...]] = set()
        shared = 0
        for arrival in self.arrivals:
            names: tuple[str, ...] = ()
            for block in arrival.blocks:
                names = (*names[-1:], block.name)
                if names in seen:
                    shared += block.tokens
                seen.add(names)
        return shared


def replay(rows: list[TraceRow], use: TraceUse, requests: int | None, seconds: float | None) -> Replay:
    """Lengths divided, then time scaled to what was asked over the rows that are taken, then cut."""
    made = [_scaled(row, index, use.factor) for index, row in enumerate(rows)]
    kept = [one for one in made if use.max_context is None or one.prompt + one.output <= use.max_context]
    if not kept:
        raise ConfigError(
            f"--max-context {use.max_context} leaves no request of the trace; a larger --length-factor would"
        )
    taken = kept[:requests] if requests else kept
    speed = _speed(taken, use)
    first = taken[0].at
    timed = [Arrival((one.at - first) / speed, one.blocks, one.output) for one in taken]
    if seconds:
        timed = [one for one in timed if one.at <= seconds]
    return Replay(tuple(timed), len(made) - len(kept), speed)


def _speed(taken: list[Arrival], use: TraceUse) -> float:
    span = taken[-1].at - taken[0].at
    if use.speed is not None or span <= 0:
        return use.speed or 1.0
    if use.rate is not None:
        return use.rate * span / max(1, len(taken) - 1)
    if use.token_rate is not None:
        return use.token_rate * span / sum(one.prompt + one.output for one in taken)
    return 1.0


def _scaled(row: TraceRow, index: int, factor: float) -> Arrival:
    """Block i of a prompt covers the tokens from i * 512 / factor on, so scaled blocks add up to the scaled prompt."""
    prompt = max(1, round(row.prompt / factor))
    output = max(1, round(row.output / factor))
    blocks: list[Block] = []
    begin = 0
    for place, name in enumerate(row.hashes or ()):
        end = min(prompt, round((place + 1) * MOONCAKE_BLOCK / factor))
        if end > begin:
            blocks.append(Block(f"hash {name}", end - begin))
        begin = max(begin, end)
    if begin < prompt:
        blocks.append(Block(f"own {index}", prompt - begin))
    return Arrival(row.at, tuple(blocks), output)
