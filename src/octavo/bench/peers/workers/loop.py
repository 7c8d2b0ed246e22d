"""A worker's side of the protocol: JSON lines, one answer to each question, until the end of its input.

A script calls `serve(Engine())`. The worker ends when its parent does: at the end of its input, and by a signal that
the kernel sends, for a stopped process reads nothing. What an engine prints goes to the log: descriptor 1 becomes
standard error, and the protocol keeps a copy that children do not inherit.

    {"load": settings}                        -> {"ready": {"seconds": s, "facts": {...}}}
    {"run": {"prompts": [[id]], "output": n}} -> {"run": {"seconds", "first", "last", "late", "counts", "extra"}}
      (and "users" where a server is asked in a closed loop)
    whatever fails                            -> {"failed": "one line"}
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

_PR_SET_PDEATHSIG = 1


class Engine(Protocol):
    """What a script gives."""

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Facts for the report."""

    @property
    def run(self) -> Callable[..., dict[str, Any]]:
        """(prompts, output): exactly `output` tokens a prompt, all handed in at once; gives a timing's fields."""

    def close(self) -> None:
        """After the last run."""


def serve(engine: Engine) -> None:
    """Answers until the end of the input."""
    end_with_parent()
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            channel.write(json.dumps(_answer(engine, json.loads(line))) + "\n")
            channel.flush()
    finally:
        engine.close()


def end_with_parent() -> None:
    """SIGKILL when the thread that started this process ends, or an exit where it has ended already."""
    parent = os.getppid()
    getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        sys.exit(1)


def _answer(engine: Engine, message: dict[str, Any]) -> dict[str, Any]:
    try:
        if "load" in message:
            began = time.perf_counter()
            facts = engine.load(message["load"])
            return {"ready": {"seconds": time.perf_counter() - began, "facts": facts}}
        work = message["run"]
        return {"run": engine.run(**work)}
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines()
        return {"failed": f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__}


class Tracks:
    """When the tokens of requests that run together came. Made when they are handed in; `take` after each step."""

    def __init__(self, requests: int) -> None:
        self._counts = [0] * requests
        self._first = [0.0] * requests
        self._last = [0.0] * requests
        self._steps: list[tuple[float, int]] = []
        self._began = time.perf_counter()

    def take(self, new: list[tuple[int, int]]) -> None:
        """`new`: (index of a request, its new tokens) of one step."""
        now = time.perf_counter() - self._began
        total = 0
        for index, tokens in new:
            if tokens:
                if not self._counts[index]:
                    self._first[index] = now
                self._counts[index] += tokens
                self._last[index] = now
                total += tokens
        self._steps.append((now, total))

    def timing(self) -> dict[str, Any]:
        """The fields of a timing, at the end of the last step."""
        seconds = time.perf_counter() - self._began
        begin = max(self._first)
        late = sum(tokens for now, tokens in self._steps if now > begin)
        return {
            "seconds": seconds,
            "first": self._first,
            "last": self._last,
            "late": late,
            "counts": self._counts,
            "extra": {},
        }
