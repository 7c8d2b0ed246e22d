"""Engines killed under load, a request that kills engines, and what is left when the server is killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.serving import parse_metrics
from benchmarks.small import small_model
from octavo.bench.chaos.child import ServerChild, left_after
from octavo.bench.chaos.load import read_stream
from octavo.bench.chaos.plan import Sizes, make_plan
from octavo.bench.chaos.run import Report, measure
from octavo.bench.serve.client import fetch
from octavo.config import EngineConfig, KVConfig, ModelConfig
from octavo.models.store import default_model
from octavo.models.tokenizer import load_tokenizer

_KV = KVConfig(size_tokens=65536)
_ENGINE = EngineConfig(kv=_KV)


def _vocabulary(model: Path | None = None) -> int:
    return load_tokenizer(str(model or default_model())).num_tokens


@contextmanager
def _small() -> Iterator[tuple[EngineConfig, Path]]:
    """The engine of short forms that are about processes."""
    with small_model() as model:
        yield EngineConfig(model=ModelConfig(path=str(model)), kv=_KV), model


def _seed() -> int:
    return random.SystemRandom().randrange(1 << 31)


def kills(short: bool) -> dict[str, Any]:
    """SIGKILL of the engine every 20 s for 5 minutes under 32 streams (short: every 3 s, 4 streams, 6 seconds)."""
    sizes = Sizes(4, 4, (30, 60), (40, 60)) if short else Sizes(96, 32)
    every, seconds = (3.0, 6.0) if short else (20.0, 300.0)
    report = measure(_ENGINE, make_plan(_seed(), sizes, _vocabulary()), every, seconds)
    gap = median(report.gaps) if report.gaps else 0.0
    met = report.whole and len(report.kills) > 0 and (short or gap < 3.0) and _counted(report)
    return {
        "bar": "every stream complete and equal to the undisturbed run, median gap under 3 s",
        "figure": f"{len(report.kills)} kills, {len(report.streams)} streams, {len(report.differences)} differ, "
        f"median gap {gap:.2f} s",
        "met": met,
        "details": report.as_json(),
    }


def poison(short: bool) -> dict[str, Any]:
    """One request that crashes the engine each time it runs, among 16 good ones (short: shorter, on a small model)."""
    if short:
        with _small() as (engine, model):
            plan = make_plan(_seed(), Sizes(17, 17, (20, 40), (40, 60)), _vocabulary(model), poison="segv")
            return _poison(measure(engine, plan))
    return _poison(measure(_ENGINE, make_plan(_seed(), Sizes(17, 17), _vocabulary(), poison="segv")))


def _poison(report: Report) -> dict[str, Any]:
    errors = [stream.error or "" for stream in report.poisoned]
    return {
        "bar": "it fails with a clear error after two engines died with it alone; the 16 are complete and equal",
        "figure": f"{len(report.good)} good streams, {len(report.differences)} differ, {len(report.deaths)} deaths; "
        f"the bad one: {errors[0] if errors else 'no answer'}",
        "met": report.whole and len(report.good) == 16 and len(errors) == 1,
        "details": report.as_json(),
    }


def _counted(report: Report) -> bool:
    return all(metric == replies for metric, replies in report.counted.values())


def orphans(short: bool) -> dict[str, Any]:
    """The server killed with SIGKILL while idle, in a step, and in a step that never ends (short: on a small model)."""
    if short:
        with _small() as (engine, _):
            return _orphans(engine)
    return _orphans(_ENGINE)


def _orphans(engine: EngineConfig) -> dict[str, Any]:
    left = {
        state: asyncio.run(_left(engine, fault, busy))
        for state, fault, busy in (("idle", (), False), ("busy", (), True), ("stuck", ("stuck@step=20,op=9",), True))
    }
    return {
        "bar": "no child is left 1 s after the parent was killed with SIGKILL",
        "figure": ", ".join(f"{state}: {len(found)} left" for state, found in left.items()),
        "met": not any(left.values()),
        "details": {state: [str(process) for process in found] for state, found in left.items()},
    }


async def _left(engine: EngineConfig, faults: tuple[str, ...], busy: bool) -> list[Any]:
    body = {"prompt": list(range(100, 200)), "max_tokens": 3900, "ignore_eos": True}
    with ServerChild(engine, faults) as server:
        await fetch(server.target, "POST", "/v1/chat/completions", _CHAT)
        tasks = [asyncio.create_task(read_stream(server.target, i, body)) for i in range(4 if busy else 0)]
        steps = 0.0
        while busy and steps < 19:
            _, page = await fetch(server.target, "GET", "/metrics")
            steps = parse_metrics(page.decode())["octavo_steps_total"]
        family = server.family()[1:]
        server.kill()
        left = await asyncio.to_thread(left_after, family, 1.0)
        await asyncio.gather(*tasks)
    return left


_CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
