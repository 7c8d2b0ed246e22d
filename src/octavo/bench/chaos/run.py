"""The run of `octavo bench chaos`: undisturbed, then disturbed, then each stream against its twin.

Life: two servers, one after the other, of the same configuration; the second's engine has the plan's faults, or is
killed from outside every so many seconds.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from octavo.bench.chaos.child import ServerChild
from octavo.bench.chaos.load import Stream, difference, run_load
from octavo.bench.chaos.plan import Plan
from octavo.bench.serve.client import fetch
from octavo.config import EngineConfig

_LEAST_KILLING = 60.0
_CALM_TIMES = 10
_DEATH = re.compile(r"the engine died \((.*)\); (\d+) requests? w")


@dataclass
class Report:
    """What came of it."""

    plan: Plan
    calm: list[Stream]
    streams: list[Stream]
    deaths: list[str]
    """How each engine ended, in the server's words."""
    kills: list[float] = field(default_factory=list)
    """Moments of the kills from outside."""
    metrics: dict[str, float] = field(default_factory=dict)
    spared: float | None = None
    """Seconds after which the killing ended although requests were open; None where it did not come to that."""

    @property
    def good(self) -> list[Stream]:
        """All but the poisoned one."""
        return [stream for stream in self.streams if stream.index != self.plan.poison]

    @property
    def poisoned(self) -> list[Stream]:
        return [stream for stream in self.streams if stream.index == self.plan.poison]

    @property
    def differences(self) -> list[str]:
        """Of the good streams from their undisturbed twins."""
        twins = {stream.index: stream for stream in self.calm}
        found = ((stream.index, difference(stream, twins[stream.index])) for stream in self.good)
        return [f"request {index}: {text}" for index, text in found if text is not None]

    @property
    def gaps(self) -> list[float]:
        """What each stream waited at each kill; without kills from outside, each stream's longest wait."""
        if self.kills:
            found = [stream.gap_at(moment) for moment in self.kills for stream in self.good]
            return [gap for gap in found if gap is not None]
        return [max(length for _, length in stream.gaps) for stream in self.good if len(stream.times) > 1]

    @property
    def counted(self) -> dict[str, tuple[float, float]]:
        """The metrics of replies beside the sum of the replies' usage."""
        names = {"prompt_tokens": "octavo_reply_prompt_tokens", "completion_tokens": "octavo_reply_completion_tokens"}
        return {
            name: (self.metrics.get(f"{metric}_total", -1.0), sum(s.usage.get(name, 0) for s in self.streams))
            for name, metric in names.items()
        }

    @property
    def whole(self) -> bool:
        """Every good stream is complete and equal, and the poisoned one, if any, failed with words."""
        rightly = all("with this request alone" in (stream.error or "") for stream in self.poisoned)
        return not self.differences and rightly and not any(stream.error for stream in self.good)

    def text(self) -> list[str]:
        gaps = self.gaps
        lines = [
            f"seed       {self.plan.seed}: {len(self.plan.bodies)} requests, {self.plan.sizes.streams} at a time",
            f"faults     {'; '.join(self.plan.faults) or 'none planned'}",
            f"deaths     {len(self.deaths)}, and {len(self.kills)} kills from outside",
            *(f"           {how}" for how in self.deaths[:20]),
            f"streams    {len(self.good)}, of which {len(self.differences)} differ from the undisturbed run",
        ]
        if self.differences:
            lines.append(f"           first: {self.differences[0]}")
        if self.spared is not None:
            lines.append(
                f"spared     from {self.spared:.0f} s on: engines were killed faster than they could finish; a longer "
                f"--kill-every, or --seconds, would set the end"
            )
        lines += [f"poisoned   {stream.error}" for stream in self.poisoned]
        if gaps:
            lines.append(f"gaps       median {median(gaps):.2f} s, longest {max(gaps):.2f} s")
        lines += [f"usage      {name}: {a:.0f} by metrics, {b:.0f} by replies" for name, (a, b) in self.counted.items()]
        return [*lines, f"verdict    {'nothing lost' if self.whole else 'NOT EQUAL'}"]

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "octavo bench chaos",
            "seed": self.plan.seed,
            "whole": self.whole,
            "faults": self.plan.faults,
            "deaths": self.deaths,
            "kills": len(self.kills),
            "streams": len(self.streams),
            "differences": self.differences[:20],
            "poisoned": [stream.error for stream in self.poisoned],
            "gaps": sorted(self.gaps),
            "counted": self.counted,
        }


def measure(
    engine: EngineConfig,
    plan: Plan,
    kill_every: float | None = None,
    seconds: float | None = None,
    said: Callable[[str], None] = lambda what: None,
) -> Report:
    """kill_every, seconds: SIGKILL from outside so often, and so long a load.

    What is open after that is left in peace: where engines start more slowly than they are killed, it would never end.
    Without `seconds` the killing ends after `_LEAST_KILLING` seconds, or `_CALM_TIMES` times the undisturbed run.
    """
    began = time.monotonic()
    with ServerChild(engine) as server:
        calm = asyncio.run(run_load(server.target, plan, said=lambda what: said(f"undisturbed: {what}")))
    most = seconds if seconds is not None else max(_LEAST_KILLING, _CALM_TIMES * (time.monotonic() - began))
    with ServerChild(engine, plan.faults) as server:
        streams, kills, ended = asyncio.run(_disturbed(server, plan, kill_every, seconds, most, said))
        _, page = asyncio.run(fetch(server.target, "GET", "/metrics"))
    deaths = [found[1] for line in server.lines if (found := _DEATH.search(line))]
    spared = most if ended and seconds is None else None
    return Report(plan, calm, streams, deaths, kills, _samples(page.decode()), spared)


async def _disturbed(
    server: ServerChild,
    plan: Plan,
    kill_every: float | None,
    seconds: float | None,
    most: float,
    said: Callable[[str], None],
) -> tuple[list[Stream], list[float], bool]:
    """The streams, the moments of kills, and whether killing ended (after `most` seconds) before the load did."""
    kills: list[float] = []

    async def killer(every: float) -> None:
        began = time.monotonic()
        while time.monotonic() - began < most:
            await asyncio.sleep(every)
            if await asyncio.to_thread(server.kill_engine):
                kills.append(time.monotonic())

    task = asyncio.create_task(killer(kill_every)) if kill_every else None
    try:
        streams = await run_load(server.target, plan, seconds, lambda what: said(f"disturbed: {what}"))
        ended = task is not None and task.done()
    finally:
        if task is not None:
            task.cancel()
    return streams, kills, ended


def _samples(page: str) -> dict[str, float]:
    samples = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}
