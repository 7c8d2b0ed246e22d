"""Any engine's HTTP server as a worker: the server is a child in the worker's session, and the client is our own.

`load` starts the server on a free port and waits until it says that it is ready, as long as it lives.
`run` is a closed loop: so many users, each of whom sends its next prompt when its last is answered; the stream of each
answer is timed as `octavo bench serve` times it. Runs under Octavo's own Python. Stopping the session stops both.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import uvloop

from octavo.bench.peers.workers.loop import serve
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import Client
from octavo.bench.serve.target import Target
from octavo.bench.stats import percentiles

_POLL = 0.02
_PATIENCE = 900.0
_END_SECONDS = 5.0
_PATH = "/v1/completions"


class HttpServer:
    """See `loop.py`. Settings: the server's `command` with `{port}` in it, the path that answers 200 when it is
    `ready`, and `fields` of every request's body."""

    _process: subprocess.Popen[bytes] | None = None

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        self._target = Target("127.0.0.1", free_port())
        command = [str(part).replace("{port}", str(self._target.port)) for part in settings["command"]]
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        began = time.monotonic()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        model = self._runner.run(self._ready(self._process, settings["ready"], began + _PATIENCE))
        seconds = time.monotonic() - began
        self._fields = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **settings["fields"]}
        return {"start_seconds": seconds, **settings.get("facts", {})}

    async def _ready(self, process: subprocess.Popen[bytes], path: str, deadline: float) -> str:
        """The name of its model, when it is ready."""
        async with Client(self._target, timeout=10.0) as client:
            while time.monotonic() < deadline:
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with status {process.returncode} before it was ready")
                try:
                    status, _ = await client.request("GET", path)
                    if status == 200:
                        _, raw = await client.request("GET", "/v1/models")
                        return str(msgspec.json.decode(raw)["data"][0]["id"])
                except ConnectionError:
                    pass  # it does not listen yet
                await asyncio.sleep(_POLL)
        raise RuntimeError(f"the server was not ready within {_PATIENCE:.0f} s")

    def run(self, prompts: list[list[int]], output: int, users: int | None = None) -> dict[str, Any]:
        bodies = [msgspec.json.encode({**self._fields, "prompt": prompt, "max_tokens": output}) for prompt in prompts]
        cpu, began = time.process_time(), time.monotonic()
        answers = self._runner.run(self._closed(bodies, users or len(bodies)))
        cpu, wall = time.process_time() - cpu, time.monotonic() - began
        return {**timing(answers, began, len(prompts[0])), "extra": {**latencies(answers), "client_cpu": cpu / wall}}

    async def _closed(self, bodies: Sequence[bytes], users: int) -> list[Answer]:
        found: dict[int, Answer] = {}
        source = iter(enumerate(bodies))

        async with Client(self._target, timeout=_PATIENCE) as client:

            async def user() -> None:
                for index, body in source:
                    found[index] = await client.stream(_PATH, body)

            await asyncio.gather(*(user() for _ in range(users)))
        return [found[index] for index in sorted(found)]

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._runner.close()


def timing(answers: Sequence[Answer], began: float, prompt: int) -> dict[str, Any]:
    """What the parent reads of a run. RuntimeError where an answer failed or was of another prompt than was sent."""
    for answer in answers:
        if answer.failure:
            raise RuntimeError(f"a request failed: {answer.failure}: {answer.detail[:200]}")
        if not answer.times or answer.completion_tokens is None:
            raise RuntimeError("an answer came without text or without usage")
        if answer.prompt_tokens != prompt:
            raise RuntimeError(f"the server counted {answer.prompt_tokens} tokens in a prompt of {prompt}")
    begin = max(answer.times[0] for answer in answers)
    return {
        "seconds": max(answer.ended for answer in answers) - began,
        "first": [answer.times[0] - began for answer in answers],
        "last": [answer.times[-1] - began for answer in answers],
        "late": sum(_after(answer, begin) for answer in answers),
        "counts": [answer.tokens for answer in answers],
    }


def _after(answer: Answer, begin: float) -> int:
    """Tokens that came after `begin`; a server that merges tokens into events is taken to do so evenly."""
    late = sum(1 for moment in answer.times if moment > begin)
    return round(answer.tokens * late / len(answer.times))


def latencies(answers: Sequence[Answer]) -> dict[str, float]:
    """Milliseconds, by the formulas of `octavo bench serve`; what is not there is left out."""
    gaps = [b - a for answer in answers for a, b in pairwise(answer.times)]
    first = [answer.ttft for answer in answers if answer.ttft is not None]
    each = [answer.tpot for answer in answers if answer.tpot is not None]
    return {
        f"{name}_{quantile}_ms": 1e3 * seconds
        for name, values in (("ttft", first), ("itl", gaps), ("tpot", each))
        for quantile, seconds in percentiles(values, (50, 99)).items()
    }


def free_port() -> int:
    """One that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(HttpServer())
