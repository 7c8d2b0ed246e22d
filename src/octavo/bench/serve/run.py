"""The whole measurement: ask the server what it takes, warm it up, repeat, report. Called by `octavo bench serve`.

Each repeat has prompts of its own, so the server's prefix cache carries nothing from one to the next but what the work
itself shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import uvloop

from octavo.bench.machine import describe
from octavo.bench.serve.arrivals import Arrival, poisson, read_trace, replay
from octavo.bench.serve.client import Client
from octavo.bench.serve.load import run_load
from octavo.bench.serve.metrics import Metrics, measure
from octavo.bench.serve.plan import Plan
from octavo.bench.serve.priority import first_in_line
from octavo.bench.serve.probe import probe
from octavo.bench.serve.prompts import Bodies
from octavo.bench.serve.report import Report
from octavo.bench.serve.target import Target

_STRIDE = 1_000_003
"""Between the seeds of repeats."""


def measure_server(
    target: Target, plan: Plan, server_pid: int | None, progress: Callable[[str], None] = lambda what: None
) -> Report:
    """In the calling thread, on an event loop of its own."""
    traced, notes = _traced(plan)
    with first_in_line() as priority, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(target, plan, traced, (*notes, priority), server_pid, progress))


def _traced(plan: Plan) -> tuple[Sequence[Arrival] | None, tuple[str, ...]]:
    if plan.shape != "trace":
        return None, ()
    made = replay(read_trace(plan.trace.path), plan.trace, plan.requests, plan.seconds)
    left = f"; {made.left_out} longer than --max-context were left out" if made.left_out else ""
    return made.arrivals, (
        f"{len(made.arrivals)} requests of the trace over {made.arrivals[-1].at:.1f} s, its time divided by "
        f"{made.speed:.4g}{left}",
        f"{made.shared_tokens} of {made.prompt_tokens} prompt tokens begin an earlier prompt too "
        f"({made.shared_tokens / made.prompt_tokens:.1%}: what a prefix cache without end would save)",
    )


async def _measure(
    target: Target,
    plan: Plan,
    traced: Sequence[Arrival] | None,
    notes: tuple[str, ...],
    server_pid: int | None,
    progress: Callable[[str], None],
) -> Report:
    found: list[Metrics] = []
    async with Client(target, plan.reuse, plan.timeout_s) as client:
        progress("asking the server what it takes")
        dialect = await probe(client, plan.ask)
        if plan.warm_up:
            progress("warming up")
            notes += await _warm_up(client, plan, Bodies(plan.ask, dialect, f"{plan.seed}/warm"), traced)
        for repeat in range(plan.repeats):
            progress(f"repeat {repeat + 1} of {plan.repeats}")
            seed = plan.seed + repeat * _STRIDE
            arrivals = poisson(plan, seed) if plan.shape == "poisson" else traced
            bodies = Bodies(plan.ask, dialect, str(seed))
            found.append(measure(await run_load(client, plan, bodies, arrivals, seed, server_pid), plan))
    return Report(target.url, plan, dialect, tuple(found), notes, describe(), client.opened, client.resent)


async def _warm_up(client: Client, plan: Plan, bodies: Bodies, traced: Sequence[Arrival] | None) -> tuple[str, ...]:
    """Requests like the measured ones, with tokens of their own; a note where some of them failed."""
    first = None if traced is None else [Arrival(0.0, one.blocks, one.output) for one in traced[: plan.warm_up]]
    few = replace(plan, requests=plan.warm_up, seconds=None)
    load = await run_load(client, few, bodies, first, plan.seed, None)
    failed = [answer for answer in load.answers if answer.failure]
    if not failed:
        return ()
    return (
        f"{len(failed)} of {len(load.answers)} requests of the warm-up failed: {failed[0].failure}: {failed[0].detail}",
    )
