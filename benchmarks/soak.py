"""Many chats at once, a third of them cut off, for minutes: no error, nothing leaked, every answer its solo answer."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.serving import ServerProcess, parse_metrics
from benchmarks.small import small_model
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import fetch, stream_once

CHAT = "/v1/chat/completions"
SUBJECTS = ["rivers", "trains", "bread", "the moon", "bees", "clocks", "salt", "maps", "kites", "glass"]
STYLES = [
    "Tell me about {}.",
    "Write a list about {}.",
    "A poem on {}, please.",
    "Why do people like {}?",
    "Explain {}.",
]


@dataclass
class Tally:
    """What happened."""

    complete: int = 0
    cut: int = 0
    errors: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def fixed_requests(count: int = 100) -> list[dict[str, Any]]:
    """The fixed (prompt, parameters) pairs; lengths from a few tokens to some hundred, greedy and seeded sampling."""
    rng = random.Random(2024)
    made = []
    for index in range(count):
        text = STYLES[index % len(STYLES)].format(SUBJECTS[index // len(STYLES) % len(SUBJECTS)])
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text * rng.choice([1, 1, 1, 3, 12])}],
            "max_tokens": rng.choice([4, 16, 48, 96, 160]),
            "temperature": rng.choice([0, 0.7, 1.0]),
            "seed": index,
        }
        if index % 4 == 0:
            body |= {"top_p": 0.9, "frequency_penalty": 0.3}
        if index % 7 == 0:
            body["stop"] = ["."]
        made.append(body)
    return made


def soak(short: bool) -> dict[str, Any]:
    """64 chats at once, a third disconnecting, 5 minutes (short: 16 chats, 4 seconds, on a small model)."""
    if short:
        with small_model() as model:
            # Python itself is not warm after some seconds.
            return _soak([str(model), "--kv-tokens", "4096"], fixed_requests(20), 16, 4.0, 16)
    return _soak(["--kv-tokens", "16384"], fixed_requests(100), 64, 300.0, 8)


def _soak(
    arguments: list[str], bodies: list[dict[str, Any]], width: int, seconds: float, most_growth: int
) -> dict[str, Any]:
    """most_growth: of memory, in MiB."""
    seed = random.SystemRandom().randrange(2**32)
    with ServerProcess(arguments) as server:
        solo = asyncio.run(solo_answers(server, bodies))
        before = settled_memory(server, bodies, solo, width, min(seconds / 5, 30))
        tally = asyncio.run(load(server, bodies, solo, width, seconds, seed))
        full = asyncio.run(pool_is_full(server))
        after = server.memory_bytes()
    growth = after - before
    flat = growth < most_growth << 20
    met = not tally.errors and not tally.different and full and flat and tally.complete > 0 and tally.cut > 0
    return {
        "bar": "no error, answers equal solo runs, pool full and memory flat afterwards",
        "figure": f"{tally.complete} answers complete and equal, {tally.cut} cut off, {len(tally.errors)} errors, "
        f"{len(tally.different)} different, pool {'full' if full else 'NOT full'}, memory {growth / 2**20:+.1f} MiB",
        "met": met,
        "details": {
            "seed": seed,
            "errors": tally.errors[:5],
            "different": tally.different[:5],
            "memory_before": before,
            "memory_after": after,
        },
    }


def settled_memory(
    server: ServerProcess, bodies: list[dict[str, Any]], solo: list[Answer], width: int, seconds: float
) -> int:
    """Loads the server until its memory grows no more: pages of the pool are the system's until first written."""
    before = server.memory_bytes()
    for turn in range(8):
        asyncio.run(load(server, bodies, solo, width, seconds, turn))
        now = server.memory_bytes()
        if now - before < 2 << 20:
            break
        before = now
    return now


async def solo_answers(server: ServerProcess, bodies: list[dict[str, Any]]) -> list[Answer]:
    """Each request alone on the server."""
    answers = []
    for body in bodies:
        answer = await stream_once(server.target, CHAT, body)
        assert answer.status == 200 and answer.done and answer.failure is None, answer
        answers.append(answer)
    return answers


async def load(
    server: ServerProcess, bodies: list[dict[str, Any]], solo: list[Answer], width: int, seconds: float, seed: int
) -> Tally:
    """`width` clients, each sending one request after another until the time is over."""
    tally = Tally()
    end = time.monotonic() + seconds
    await asyncio.gather(
        *(_client(server, bodies, solo, end, random.Random(seed * 1000 + i), tally) for i in range(width))
    )
    return tally


async def _client(
    server: ServerProcess,
    bodies: list[dict[str, Any]],
    solo: list[Answer],
    end: float,
    rng: random.Random,
    tally: Tally,
) -> None:
    while time.monotonic() < end:
        index = rng.randrange(len(bodies))
        cut_after = rng.randrange(1, 20) if rng.random() < 1 / 3 else 0
        answer = await stream_once(server.target, CHAT, bodies[index], cut_after)
        _judge(index, answer, solo[index], tally)


def _judge(index: int, answer: Answer, solo: Answer, tally: Tally) -> None:
    if answer.failure or not (answer.done or answer.cut):
        tally.errors.append(f"request {index}: {answer.failure}: {answer.detail}")
    elif answer.cut:
        tally.cut += 1
        if not solo.text.startswith(answer.text):
            tally.different.append(f"request {index}: {answer.text!r} does not begin {solo.text!r}")
    else:
        tally.complete += 1
        mine = (answer.text, answer.finish, answer.completion_tokens)
        if mine != (solo.text, solo.finish, solo.completion_tokens):
            tally.different.append(f"request {index}: {answer.text!r} is not {solo.text!r}")


async def pool_is_full(server: ServerProcess, patience: float = 10.0) -> bool:
    """Whether, within `patience` seconds of the last request, every block is free or only cached again."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        _, body = await fetch(server.target, "GET", "/metrics")
        values = parse_metrics(body.decode())
        free, total = values["octavo_kv_blocks_free"], values["octavo_kv_blocks"]
        if free == total and values["octavo_requests_running"] == 0 and values["octavo_requests_waiting"] == 0:
            return True
        await asyncio.sleep(0.1)
    return False
