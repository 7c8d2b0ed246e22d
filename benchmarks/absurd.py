"""Absurd requests beside good streams: each refused with a 4xx at once, and the streams as if nothing had happened.

Rounds without and with absurd requests alternate, so that a machine that drifts harms both alike. A process of its own
sends the absurd ones (`python -m benchmarks.absurd HOST PORT SEED COUNT SECONDS`), built before, at an even pace.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from statistics import quantiles
from typing import Any

from benchmarks.absurd_kinds import KINDS, Raw, draw
from benchmarks.serving import ServerProcess
from benchmarks.soak import CHAT, fixed_requests
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import stream_once

REFUSED_SECONDS = 0.1
P99_FACTOR = 1.3
_GIVE_UP_SECONDS = 20.0


def absurd(short: bool) -> dict[str, Any]:
    """1 000 absurd requests over four rounds of 16 streams (short: one of each kind, over one round of 6)."""
    return measure(6, 1, len(KINDS), 20) if short else measure(16, 4, 1000, 240)


def measure(streams: int, rounds: int, count: int, tokens: int) -> dict[str, Any]:
    """`count` absurd requests over `rounds` rounds, beside so many streams of so many tokens."""
    seed = random.SystemRandom().randrange(2**32)
    chats = [body for body in fixed_requests(100) if "stop" not in body][:streams]
    bodies = [{**body, "max_tokens": tokens, "ignore_eos": True} for body in chats]
    calm: list[float] = []
    stormy: list[float] = []
    different: list[str] = []
    refusals: list[tuple[str, int, float]] = []
    with ServerProcess() as server:
        solo = [asyncio.run(_solo(server, body)) for body in bodies]
        seconds = asyncio.run(_round(server, bodies, solo, different, []))
        for index in range(rounds):
            asyncio.run(_round(server, bodies, solo, different, calm))
            each = str(-(-count // rounds))
            sender = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __spec__.name,
                    server.host,
                    str(server.port),
                    str(seed + index),
                    each,
                    str(seconds),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert sender.stdin is not None and sender.stdout is not None
            assert sender.stdout.readline() == "ready\n"
            sender.stdin.write("go\n")
            sender.stdin.flush()
            asyncio.run(_round(server, bodies, solo, different, stormy))
            refusals += json.loads(sender.communicate(timeout=300)[0])
    return _judge(seed, calm, stormy, different, refusals)


def _judge(
    seed: int, calm: list[float], stormy: list[float], different: list[str], refusals: list[tuple[str, int, float]]
) -> dict[str, Any]:
    served = [f"{name}: {status}" for name, status, _ in refusals if not 400 <= status < 500]
    late = [f"{name}: {1000 * seconds:.0f} ms" for name, _, seconds in refusals if seconds > REFUSED_SECONDS]
    before, after = p99(calm), p99(stormy)
    slowest = sorted(refusals, key=lambda row: -row[2])[:5]
    return {
        "bar": f"all 4xx in under {REFUSED_SECONDS * 1000:.0f} ms; streams equal solo, their inter-token P99 within "
        f"{P99_FACTOR} times",
        "figure": f"{len(refusals)} requests of {len(KINDS)} kinds: {len(served)} not refused, {len(late)} late "
        f"(slowest {1000 * slowest[0][2]:.0f} ms, {slowest[0][0]}); {len(different)} streams different; P99 "
        f"{1000 * before:.1f} ms alone, {1000 * after:.1f} ms beside them ({after / before:.2f} times)",
        "met": not served and not late and not different and after <= P99_FACTOR * before,
        "details": {
            "seed": seed,
            "not_refused": served[:20],
            "late": late[:20],
            "slowest": slowest,
            "different": different[:5],
            "p99": {"alone": before, "beside": after, "factor": after / before},
            "gaps": {"alone": len(calm), "beside": len(stormy)},
        },
    }


def p99(gaps: list[float]) -> float:
    return quantiles(gaps, n=100)[98]


async def _solo(server: ServerProcess, body: dict[str, Any]) -> Answer:
    answer = await stream_once(server.target, CHAT, body)
    assert answer.complete and answer.done, answer
    return answer


async def _round(
    server: ServerProcess, bodies: list[dict[str, Any]], solo: list[Answer], different: list[str], gaps: list[float]
) -> float:
    """All streams at once; their gaps, and how long it took."""
    began = time.monotonic()
    answers = await asyncio.gather(*(stream_once(server.target, CHAT, body) for body in bodies))
    for answer, alone in zip(answers, solo, strict=True):
        if (answer.text, answer.finish, answer.done) != (alone.text, alone.finish, True):
            different.append(f"{answer.text[:80]!r} is not {alone.text[:80]!r}; {answer.failure} {answer.detail}")
        gaps += [b - a for a, b in zip(answer.times, answer.times[1:], strict=False)]
    return time.monotonic() - began


# --- the sender -----------------------------------------------------------------------------------------


async def _send(host: str, port: int, raw: Raw) -> tuple[int, float]:
    """The status (0: none came), and the seconds from the connection to it."""
    try:
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            began = time.monotonic()
            try:
                writer.write(raw.content)
                line = await reader.readline()
                return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0, time.monotonic() - began
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return 0, _GIVE_UP_SECONDS


async def send_all(host: str, port: int, drawn: list[tuple[str, Raw]], seconds: float) -> list[tuple[str, int, float]]:
    """All of them, at an even pace."""
    began = time.monotonic()

    async def one(index: int, name: str, raw: Raw) -> tuple[str, int, float]:
        await asyncio.sleep(max(0.0, began + seconds * index / len(drawn) - time.monotonic()))
        return name, *await _send(host, port, raw)

    return await asyncio.gather(*(one(index, name, raw) for index, (name, raw) in enumerate(drawn)))


def main() -> None:
    host, port, seed, count, seconds = sys.argv[1:]
    drawn = draw(random.Random(int(seed)), int(count))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(send_all(host, int(port), drawn, float(seconds)))), flush=True)


if __name__ == "__main__":
    main()
