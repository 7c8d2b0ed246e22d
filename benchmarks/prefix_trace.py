"""What the prefix cache finds of a real conversation trace, beside LRU and the best that could be known afterwards.

The requests go one after another through the real engine core (scheduler, manager, prefix cache) over an executor that
computes nothing, so the accesses are the same for every policy. Belady's rule evicts the block whose next use lies
furthest in the future; nobody can know that, so it is a bound. LRU is computed here too, and must equal the engine's.
"""

from __future__ import annotations

import heapq
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.instant import TOKEN, Instant
from benchmarks.skip import Skipped
from octavo.bench.serve.arrivals import Arrival, Block, read_trace, replay
from octavo.bench.serve.plan import TraceUse
from octavo.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.kvcache.keys import KeyChain, KeyContext
from octavo.types import NewRequest, SamplingParams

TRACE = "OCTAVO_BARS_CONVERSATIONS"
"""Environment variable: path of a trace with hash ids (JSON lines)."""
REQUESTS, FACTOR, BLOCK = 1000, 16.0, 32
_LENGTH = 1 << 17
_NEVER = 1 << 40


@dataclass(frozen=True)
class Access:
    """One request: the keys it looks for, and those it leaves behind."""

    prompt: tuple[int, ...]
    output: int
    keys: tuple[bytes, ...]
    """Of all blocks that it fills."""

    @property
    def asked(self) -> int:
        """Leading keys that it looks for."""
        return len(self.prompt) // BLOCK

    @property
    def blocks(self) -> int:
        """Blocks that it holds at its end; the last token drawn is never computed."""
        return -(-(len(self.prompt) + self.output - 1) // BLOCK)

    def hit_tokens(self, found: int) -> int:
        return min(found * BLOCK, len(self.prompt) - 1)


def prompt_of(arrival: Arrival) -> list[int]:
    """Tokens that follow from the blocks' names."""
    tokens: list[int] = []
    for block in arrival.blocks:
        rng = random.Random(block.name)
        tokens += rng.choices(range(100, 50_000), k=block.tokens)
    return tokens


def accesses(arrivals: Sequence[Arrival]) -> list[Access]:
    found = []
    for arrival in arrivals:
        prompt = prompt_of(arrival)
        tokens = prompt + [TOKEN] * (arrival.output - 1)
        chain = KeyChain(KeyContext("w", "n", BLOCK))
        keys = tuple(chain.key(index, tokens) for index in range(len(tokens) // BLOCK))
        found.append(Access(tuple(prompt), arrival.output, keys))
    return found


def conversations(users: int, turns: int, seed: int) -> list[Arrival]:
    """A made-up trace: users share a system prompt and come back with all that was said, at random moments."""
    rng = random.Random(seed)
    said: list[list[Block]] = [[Block("system", 64)] for _ in range(users)]
    order = [user for user in range(users) for _ in range(turns)]
    rng.shuffle(order)
    made = []
    for number, user in enumerate(order):
        if rng.random() < 0.3:
            made.append(Arrival(float(number), (Block("system", 64), Block(f"once {number}", 200)), 8))
        said[user].append(Block(f"turn {number}", rng.randrange(1, 5) * 32))
        made.append(Arrival(float(number), tuple(said[user]), 8))
    return made


# --- the engine --------------------------------------------------------------------------------------


def engine_hits(work: Sequence[Access], pool: int, eviction: str) -> int:
    """Prompt tokens that the real engine takes from its cache; pool: blocks."""
    config = EngineConfig(
        model=ModelConfig(max_model_len=_LENGTH),
        kv=KVConfig(size_tokens=pool * BLOCK, eviction=eviction),
        scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=4096),
    )
    executor = Instant(pool)
    core = EngineCore(config, executor)
    for number, access in enumerate(work):
        params = SamplingParams(max_tokens=access.output, ignore_eos=True, temperature=0.0)
        core.handle(NewRequest(request_id=number, prompt=list(access.prompt), params=params, seed=0))
        while core.has_work:
            core.step()
    core.validate()
    hits = core.stats().cached_prompt_tokens
    rows = sum(len(access.prompt) + access.output - 1 for access in work)
    assert executor.rows == rows - hits, "rows fall by exactly the hits"
    return hits


# --- computed ----------------------------------------------------------------------------------------


@dataclass
class _Kept:
    parent: bytes | None
    place: int
    children: int = 0
    order: tuple[int, int] | None = None
    """None while a request reads it."""
    queued: int = 0


class Offline:
    """A prefix cache as a simulation over recorded accesses: `belady`, or least recently used."""

    def __init__(self, work: Sequence[Access], pool: int, belady: bool) -> None:
        self._work = work
        self._free = pool
        self._belady = belady
        self._kept: dict[bytes, _Kept] = {}
        self._queue: list[tuple[tuple[int, int], int, bytes]] = []
        self._pushed = 0
        self._next: dict[bytes, list[int]] = defaultdict(list)
        for turn in range(len(work) - 1, -1, -1):
            for key in work[turn].keys[: work[turn].asked]:
                self._next[key].append(turn)

    def hits(self) -> int:
        """Prompt tokens found over all requests."""
        return sum(self._serve(turn, access) for turn, access in enumerate(self._work))

    def _serve(self, turn: int, access: Access) -> int:
        found = 0
        while found < access.asked and access.keys[found] in self._kept:
            found += 1
        for key in access.keys[:found]:
            self._kept[key].queued = 0
            self._kept[key].order = None
        while self._free < access.blocks - found:
            self._evict()
        mine = list(range(found))
        for place in range(found, len(access.keys)):
            # An answer may end as another's did: its block is computed twice, and the copy is not kept.
            if access.keys[place] not in self._kept:
                parent = access.keys[place - 1] if place else None
                self._kept[access.keys[place]] = _Kept(parent, place)
                mine.append(place)
                if parent is not None:
                    self._kept[parent].children += 1
        self._free -= len(mine) - found
        for age, place in enumerate(reversed(mine)):
            key = access.keys[place]
            self._kept[key].order = self._order(key, turn, place) if self._belady else (turn, age)
            self._push(key)
        return access.hit_tokens(found)

    def _order(self, key: bytes, turn: int, place: int) -> tuple[int, int]:
        """The furthest next use first; of equals the deepest, which nobody else needs."""
        uses = self._next[key]
        while uses and uses[-1] <= turn:
            uses.pop()
        return -(uses[-1] if uses else _NEVER), -place

    def _push(self, key: bytes) -> None:
        kept = self._kept[key]
        if kept.order is not None and not kept.children:
            self._pushed += 1
            kept.queued = self._pushed
            heapq.heappush(self._queue, (kept.order, self._pushed, key))

    def _evict(self) -> None:
        while True:
            _, number, key = heapq.heappop(self._queue)
            kept = self._kept.get(key)
            if kept is not None and kept.queued == number and not kept.children:
                break
        del self._kept[key]
        self._free += 1
        if kept.parent is not None:
            self._kept[kept.parent].children -= 1
            self._push(kept.parent)


# --- the row -----------------------------------------------------------------------------------------


def prefix_trace(short: bool) -> dict[str, Any]:
    """Hit rates at pools of a quarter and a half of the working set."""
    if short:
        arrivals = conversations(12, 8, random.SystemRandom().randrange(1 << 30))
    else:
        path = os.environ.get(TRACE)
        if not path or not Path(path).exists():
            raise Skipped(f"{TRACE} does not name a trace; the Mooncake conversation trace (FAST 2025) is meant")
        arrivals = list(replay(read_trace(path), TraceUse(factor=FACTOR), REQUESTS, None).arrivals)
    work = accesses([replace(arrival, output=max(1, arrival.output)) for arrival in arrivals])
    blocks = len({key for access in work for key in access.keys})
    tokens = sum(len(access.prompt) for access in work)
    endless = Offline(work, 1 << 40, belady=False).hits()
    rates: dict[str, dict[str, float]] = {}
    for part in (0.25, 0.5):
        pool = max(int(blocks * part), max(access.blocks for access in work))
        lru = engine_hits(work, pool, "lru")
        computed = Offline(work, pool, belady=False).hits()
        assert lru == computed, f"the engine's LRU found {lru} tokens, a list of the same accesses {computed}"
        rates[f"{part:.0%}"] = {
            "cost": engine_hits(work, pool, "cost") / tokens,
            "lru": lru / tokens,
            "belady": Offline(work, pool, belady=True).hits() / tokens,
        }
    # A small made-up trace is one draw: there the policy may be a little behind by chance.
    least = 0.85 if short else 1.0
    met = all(least * rate["lru"] <= rate["cost"] <= rate["belady"] + 1e-9 for rate in rates.values())
    figure = "; ".join(
        f"pool {part}: {rate['cost']:.4f}, LRU {rate['lru']:.4f}, Belady {rate['belady']:.4f}"
        for part, rate in rates.items()
    )
    return {
        "bar": f"hit rate at least {'' if least == 1 else f'{least} of '}LRU's at 25 % and 50 % of the working set",
        "figure": f"{figure} (endless pool {endless / tokens:.4f})",
        "met": met,
        "details": {
            "requests": len(work),
            "prompt_tokens": tokens,
            "working_set_blocks": blocks,
            "endless": endless / tokens,
            "rates": rates,
        },
    }
