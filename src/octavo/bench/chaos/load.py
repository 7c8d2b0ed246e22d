"""Streams read whole: each choice's text, log-probabilities and end, and when each event came.

Owns one connection a request. A stream is read to its end or its failure; nothing is raised for what the server does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.bench.chaos.plan import Plan
from octavo.bench.serve.reader import SSE, Response
from octavo.bench.serve.target import Target

_READ = 1 << 16
TIMEOUT_SECONDS = 600.0


@dataclass
class Told:
    """One choice."""

    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    """(token, value, alternatives) of each entry."""
    finish: str | None = None


@dataclass
class Stream:
    """One answer."""

    index: int
    """Of its body in the plan."""
    choices: dict[int, Told] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    """Arrival of each event."""
    error: str | None = None
    usage: dict[str, int] = field(default_factory=dict)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """(begin, seconds) of each wait between events."""
        return [(a, b - a) for a, b in zip(self.times, self.times[1:], strict=False)]

    def gap_at(self, moment: float) -> float | None:
        """The wait that began with a death at `moment`; None where the stream did not run then."""
        if not self.times or not self.times[0] < moment < self.times[-1]:
            return None
        return max(length for begin, length in self.gaps if begin + length > moment and begin < moment + 1.0)


def difference(stream: Stream, other: Stream) -> str | None:
    """The first difference in words, or None; `other` is the undisturbed one."""
    if stream.error is not None or other.error is not None:
        return None if stream.error == other.error else f"it failed: {stream.error or other.error}"
    for index in sorted(other.choices.keys() | stream.choices.keys()):
        one, two = stream.choices.get(index, Told()), other.choices.get(index, Told())
        if one.text != two.text:
            at = next((i for i, (a, b) in enumerate(zip(one.text, two.text, strict=False)) if a != b), None)
            at = min(len(one.text), len(two.text)) if at is None else at
            return f"choice {index}, character {at}: {one.text[at : at + 20]!r} is not {two.text[at : at + 20]!r}"
        if one.logprobs != two.logprobs:
            pairs = zip(one.logprobs, two.logprobs, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.logprobs), len(two.logprobs)))
            return f"choice {index}, log-probability {at} differs ({len(one.logprobs)} and {len(two.logprobs)} entries)"
        if one.finish != two.finish:
            return f"choice {index} ends with {one.finish}, not {two.finish}"
    counts = [(s.usage.get("prompt_tokens"), s.usage.get("completion_tokens")) for s in (stream, other)]
    return None if counts[0] == counts[1] else f"usage {counts[0]} is not {counts[1]}"


async def read_stream(target: Target, index: int, body: dict[str, Any]) -> Stream:
    """One streamed completion."""
    stream = Stream(index)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await _read(target, body, stream)
    except TimeoutError:
        stream.error = f"no end within {TIMEOUT_SECONDS:.0f} s"
    except OSError as error:
        stream.error = str(error)
    return stream


async def _read(target: Target, body: dict[str, Any], stream: Stream) -> None:
    raw = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
    head = target.head("POST", "/v1/completions", reuse=False)
    reader, writer = await asyncio.open_connection(target.host, target.port)
    events = SSE()
    plain = bytearray()
    done = False

    def take(part: bytes) -> None:
        nonlocal done
        if response.status != 200:
            plain.extend(part)
            return
        for data in events.feed(part):
            if data == b"[DONE]":
                done = True
            else:
                _event(stream, msgspec.json.decode(data))

    response = Response(take)
    try:
        writer.write(head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
        while not response.complete and (data := await reader.read(_READ)):
            response.feed(data)
    finally:
        writer.close()
    if response.status != 200:
        stream.error = f"HTTP {response.status}: {plain.decode(errors='replace')[:300]}"
    elif not done and stream.error is None:
        stream.error = f"it ended without [DONE] after {len(stream.times)} events"


def _event(stream: Stream, event: dict[str, Any]) -> None:
    if event.get("error"):
        stream.error = str(event["error"].get("message", event["error"]))
        return
    if event.get("usage"):
        stream.usage = event["usage"]
    for choice in event.get("choices") or ():
        stream.times.append(time.monotonic())
        told = stream.choices.setdefault(choice["index"], Told())
        told.text += choice.get("text") or ""
        told.finish = choice.get("finish_reason") or told.finish
        found = choice.get("logprobs")
        if found:
            told.logprobs += zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)


async def run_load(
    target: Target, plan: Plan, seconds: float | None = None, said: Callable[[str], None] = lambda what: None
) -> list[Stream]:
    """All bodies of the plan, `streams` at a time; with `seconds`, over and over until that time is up."""
    streams: list[Stream] = []
    end = None if seconds is None else time.monotonic() + seconds
    count = 0

    async def client() -> None:
        nonlocal count
        while count < len(plan.bodies) if end is None else time.monotonic() < end:
            index, count = count % len(plan.bodies), count + 1
            streams.append(await read_stream(target, index, plan.bodies[index]))
            said(f"{len(streams)} answers")

    await asyncio.gather(*(client() for _ in range(plan.sizes.streams)))
    return streams


def failures(streams: Sequence[Stream]) -> list[str]:
    return [f"request {stream.index}: {stream.error}" for stream in streams if stream.error is not None]
