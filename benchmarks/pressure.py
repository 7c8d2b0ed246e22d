"""What happens under pressure, at a real server: prompts beside streams, one tenant against another, overload."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.serving import ServerProcess
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import Client
from octavo.bench.serve.target import Target

PATH = "/v1/completions"
Size = tuple[int, int]
"""Tokens of a prompt and of its answer."""
SIZE, SHORT_SIZE = (64, 32), (16, 8)
SLO_TTFT = 2.0
"""Seconds to the first token within which an answer counts as good."""


@dataclass(frozen=True)
class TenantTarget(Target):
    """Requests of one tenant."""

    tenant: str = ""

    def head(self, method: str, path: str, reuse: bool) -> bytes:
        return super().head(method, path, reuse) + f"X-Tenant: {self.tenant}\r\n".encode("latin-1")


def _target(server: ServerProcess, tenant: str) -> TenantTarget:
    return TenantTarget(server.host, server.port, tenant=tenant)


def _body(rng: random.Random, prompt: int, output: int) -> bytes:
    return msgspec.json.encode(
        {
            "prompt": [rng.randrange(1000, 40000) for _ in range(prompt)],
            "max_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def at_rate(
    target: Target, rate: float, seconds: float, rng: random.Random, size: Size, burst: int = 1
) -> list[Answer]:
    """Requests at random moments, whether or not the ones before are answered; first `burst` of them at once."""
    moments = [*[0.0] * burst, *itertools.takewhile(lambda t: t < seconds, itertools.accumulate(_gaps(rng, rate)))]
    begin = time.monotonic()
    async with Client(target, timeout=120) as client:

        async def one(moment: float, body: bytes) -> Answer:
            await asyncio.sleep(max(0.0, begin + moment - time.monotonic()))
            return await client.stream(PATH, body, due=begin + moment)

        return list(await asyncio.gather(*[one(moment, _body(rng, *size)) for moment in moments]))


def _gaps(rng: random.Random, rate: float) -> Iterable[float]:
    while True:
        yield rng.expovariate(rate)


async def in_turn(target: Target, clients: int, seconds: float, rng: random.Random, size: Size) -> list[Answer]:
    """Clients that send a request as soon as the one before is answered, until `seconds` have passed."""
    end = time.monotonic() + seconds
    answers: list[Answer] = []
    async with Client(target, timeout=120) as client:

        async def loop() -> None:
            while time.monotonic() < end:
                answers.append(await client.stream(PATH, _body(rng, *size)))

        await asyncio.gather(*[loop() for _ in range(clients)])
    return answers


def _rate(answers: list[Answer]) -> float:
    """Whole answers a second."""
    whole = [answer for answer in answers if answer.complete]
    assert whole, [answer.detail for answer in answers[:3]]
    return len(whole) / (max(a.times[-1] for a in whole) - min(a.sent for a in whole))


def _ttft(answers: list[Answer], share: float = 0.95) -> float:
    """A percentile of the time to the first token."""
    times = sorted(ttft for answer in answers if (ttft := answer.ttft) is not None)
    assert times, [answer.detail for answer in answers[:3]]
    return times[min(len(times) - 1, int(share * len(times)))]


def tenants(short: bool) -> dict[str, Any]:
    """One tenant sends ten times another's load; then both have always somebody waiting."""
    seconds, places, size = (3.0, 4, SHORT_SIZE) if short else (100.0, 16, SIZE)
    rng = random.Random()
    args = ["--tenant-header", "X-Tenant", "--max-num-seqs", str(places), "--no-prefix-cache"]
    with ServerProcess(args) as server:
        big, small = _target(server, "big"), _target(server, "small")
        capacity = _rate(asyncio.run(in_turn(big, places, seconds / 2, rng, size)))
        rate = capacity / 12
        alone = asyncio.run(at_rate(small, rate, seconds, rng, size))

        async def beside() -> tuple[list[Answer], list[Answer]]:
            many, few = await asyncio.gather(
                at_rate(big, 10 * rate, seconds, rng, size), at_rate(small, rate, seconds, rng, size)
            )
            return many, few

        _, crowded = asyncio.run(beside())

        async def backlogged() -> tuple[list[Answer], list[Answer]]:
            many, few = await asyncio.gather(
                in_turn(big, (3 if short else 10) * places, seconds, rng, size),
                in_turn(small, 2 * places, seconds, rng, size),
            )
            return many, few

        begin = time.monotonic()
        both = asyncio.run(backlogged())
    window = (begin + 0.2 * seconds, begin + seconds)
    served = [sum(window[0] <= t < window[1] for answer in part for t in answer.times) for part in both]
    share = served[1] / max(1, sum(served))
    slower = _ttft(crowded) / _ttft(alone)
    failures = [answer.detail for answer in (*alone, *crowded, *both[0], *both[1]) if answer.failure]
    return {
        "bar": "both backlogged: shares 50 ± 5 %; the small one's TTFT P95 within 2x of alone; no failures",
        "figure": f"the small one's share {share:.1%}; TTFT P95 {_ttft(alone) * 1e3:.0f} ms alone, "
        f"{_ttft(crowded) * 1e3:.0f} ms beside ten times its load ({slower:.2f}x); {len(failures)} failures",
        "met": abs(share - 0.5) <= 0.05 and slower <= 2 and not failures,
        "details": {"share": share, "slower": slower, "capacity": capacity, "served": served, "failures": failures[:5]},
    }


def _good(answers: list[Answer], seconds: float) -> float:
    """Whole answers a second whose first token came in time."""
    good = [answer for answer in answers if answer.complete and (answer.ttft or SLO_TTFT) < SLO_TTFT]
    return len(good) / seconds


def overload(short: bool) -> dict[str, Any]:
    """Three times what is sustainable, then normal again."""
    seconds, quiet, settling = (4.0, 2.5, 2.0) if short else (300.0, 60.0, 10.0)
    places, queue, size = (4, 1, SHORT_SIZE) if short else (16, 16, SIZE)
    burst = 8 * places if short else 1  # so many at once are too many on any machine
    rng = random.Random()
    args = ["--max-num-seqs", str(places), "--max-queue-requests", str(queue), "--no-prefix-cache"]
    with ServerProcess(args) as server:
        target = server.target
        sustainable = 0.9 * _rate(asyncio.run(in_turn(target, places, quiet, rng, size)))
        best = asyncio.run(at_rate(target, sustainable, quiet, rng, size))
        normal = asyncio.run(at_rate(target, sustainable / 2, quiet, rng, size))
        memory = server.memory_bytes()
        flood = asyncio.run(at_rate(target, 3 * sustainable, seconds, rng, size, burst))
        growth = server.memory_bytes() - memory
        asyncio.run(at_rate(target, sustainable / 2, settling, rng, size))
        late = asyncio.run(at_rate(target, sustainable / 2, quiet, rng, size))
    refused = sorted(answer.ended - answer.sent for answer in flood if answer.status == 429)
    others = [answer.detail for answer in flood if answer.failure and answer.status != 429]
    slowest = refused[min(len(refused) - 1, int(0.99 * len(refused)))] if refused else 0.0
    kept = _good(flood, seconds) / max(1e-9, _good(best, quiet))
    again = _ttft(late) / _ttft(normal)
    flat = growth < (64 << 20)
    return {
        "bar": "429 in under 50 ms (P99), goodput at least 0.8 of the best rate's, memory bounded, TTFT P95 within "
        "1.5x of normal 10 s later, no other failure",
        "figure": f"{len(refused)} of {len(flood)} refused, P99 {slowest * 1e3:.1f} ms; goodput {kept:.2f} of the best "
        f"rate's; memory {growth / 2**20:+.0f} MiB; TTFT P95 {again:.2f}x of normal afterwards; {len(others)} others",
        "met": bool(refused) and slowest < 0.05 and kept >= 0.8 and flat and again <= 1.5 and not others,
        "details": {
            "sustainable": sustainable,
            "refused_max": refused[-1] if refused else None,
            "goodput": [_good(best, quiet), _good(flood, seconds)],
            "growth": growth,
            "others": others[:5],
        },
    }


def itl_target(short: bool) -> dict[str, Any]:
    """Gaps of eight streams while long prompts arrive, under `--target-itl-ms`; the prompts' TTFT beside it."""
    target_ms, streams, prompts, length = (80, 4, 1, 1000) if short else (40, 8, 6, 4000)
    gaps: dict[str, list[float]] = {}
    first: dict[str, float] = {}
    rng = random.Random()
    for name, extra in {"target": ["--target-itl-ms", str(target_ms)], "whole budget": []}.items():
        args = ["--max-model-len", "6000", "--kv-tokens", "65536", "--no-prefix-cache", *extra]
        with ServerProcess(args) as server:
            found = asyncio.run(_streams_and_prompts(server.target, streams, prompts, length, rng))
        gaps[name], first[name] = found
    p99 = {name: _p99(found) for name, found in gaps.items()}
    return {
        "bar": f"P99 of the gaps within 1.25 of --target-itl-ms {target_ms}",
        "figure": f"P99 {p99['target'] * 1e3:.1f} ms with the target, {p99['whole budget'] * 1e3:.1f} ms without; "
        f"TTFT of {length} tokens {first['target']:.2f} and {first['whole budget']:.2f} s",
        "met": p99["target"] <= 1.25 * target_ms / 1000,
        "details": {"p99": p99, "ttft": first, "gaps": {name: len(found) for name, found in gaps.items()}},
    }


async def _streams_and_prompts(
    target: Target, streams: int, prompts: int, length: int, rng: random.Random
) -> tuple[list[float], float]:
    """Gaps of the streams from the first prompt's arrival to the last one's first token; the prompts' mean TTFT."""
    over = asyncio.Event()
    streamed: list[Answer] = []
    async with Client(target, timeout=300) as client:

        async def stream() -> None:
            while not over.is_set():
                streamed.append(await client.stream(PATH, _body(rng, 16, 128)))

        running = [asyncio.create_task(stream()) for _ in range(streams)]
        await client.stream(PATH, _body(rng, 16, 32))
        begin = time.monotonic()
        answers = [await client.stream(PATH, _body(rng, length, 2)) for _ in range(prompts)]
        end = answers[-1].times[0]
        over.set()
        await asyncio.gather(*running)
    pairs = [pair for answer in streamed for pair in itertools.pairwise(answer.times)]
    return [b - a for a, b in pairs if begin <= a and b <= end], sum(a.ttft or 0.0 for a in answers) / len(answers)


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]
