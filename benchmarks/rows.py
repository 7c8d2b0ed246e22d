"""What each row of `make bars` does. Every function takes `short` and returns bar, figure, met and details."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.serving import ServerProcess
from benchmarks.soak import soak as soak
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import fetch, stream_once

__all__ = ["batching", "first_answer", "install_size", "second_start", "soak", "tests"]

CHAT = "/v1/chat/completions"


def short_chat(server: ServerProcess, max_tokens: int = 24) -> tuple[Answer, float]:
    """One short streamed chat; the answer and the seconds to its first text."""
    model = {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": max_tokens}
    answer = asyncio.run(stream_once(server.target, CHAT, {**model, "temperature": 0}))
    assert answer.status == 200 and answer.done and answer.text, answer
    return answer, answer.times[0] - answer.sent


def clone_here(folder: str) -> str:
    """A fresh clone of the commit at hand."""
    target = str(Path(folder) / "clone")
    subprocess.run(["git", "clone", "--quiet", ".", target], check=True)
    return target


def empty_caches(folder: str) -> dict[str, str]:
    """Environment in which neither models nor packages are cached."""
    return {"OCTAVO_CACHE": f"{folder}/octavo", "PIP_CACHE_DIR": f"{folder}/pip", "XDG_CACHE_HOME": f"{folder}/xdg"}


def first_answer(short: bool) -> dict[str, Any]:
    """Fresh clone, empty caches: `make serve` to the first streamed chat answer."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        clone = clone_here(folder)
        with ServerProcess(
            command=["make", "serve", "ARGS=--port 0"], env=empty_caches(folder), cwd=clone, start_timeout=600
        ) as server:
            answer, _ = short_chat(server)
            seconds = time.monotonic() - started
    return {
        "bar": "under 240 s",
        "figure": f"{seconds:.0f} s",
        "met": seconds < 240,
        "details": {"seconds": seconds, "answer": answer.text},
    }


def second_start(short: bool) -> dict[str, Any]:
    """Start to /ready with everything cached, and the first token of a short chat after it."""
    runs = 2 if short else 5
    ready: list[float] = []
    first: list[float] = []
    with ServerProcess() as server:
        short_chat(server)
    for _ in range(runs):
        with ServerProcess() as server:
            _, seconds = short_chat(server)
            ready.append(server.ready_seconds)
            first.append(seconds)
    return {
        "bar": "ready under 2 s, first token within 0.3 s after",
        "figure": f"ready {median(ready):.2f} s (worst {max(ready):.2f}), first token {median(first):.3f} s "
        f"(worst {max(first):.3f})",
        "met": median(ready) < 2 and median(first) < 0.3,
        "details": {"ready": ready, "first_token": first},
    }


def tests(short: bool) -> dict[str, Any]:
    """`make test` in a fresh clone."""
    with tempfile.TemporaryDirectory() as folder:
        clone = clone_here(folder)
        started = time.monotonic()
        done = subprocess.run(
            ["make", "test"], cwd=clone, env={**os.environ, "OCTAVO_CACHE": f"{folder}/octavo"}, capture_output=True
        )
        seconds = time.monotonic() - started
    tail = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
    return {
        "bar": "green, under 720 s",
        "figure": f"exit {done.returncode}, {seconds:.0f} s, {' '.join(tail)}",
        "met": done.returncode == 0 and seconds < 720,
        "details": {"seconds": seconds, "exit": done.returncode, "tail": tail},
    }


def install_size(short: bool) -> dict[str, Any]:
    """The serving install: no Torch, under 200 MB."""
    with tempfile.TemporaryDirectory() as folder:
        clone = clone_here(folder)
        subprocess.run(["make", ".venv/.installed"], cwd=clone, check=True, capture_output=True)
        venv = Path(clone) / ".venv"
        size = sum(path.lstat().st_size for path in venv.rglob("*") if path.is_file() and not path.is_symlink())
        torch = [str(path) for path in venv.glob("lib/python*/site-packages/torch*")]
        names = subprocess.run([str(venv / "bin/python"), "-m", "pip", "list"], capture_output=True, text=True).stdout
        shutil.rmtree(venv)
    return {
        "bar": "no Torch, under 200 MB",
        "figure": f"{size / 1e6:.0f} MB, {'Torch!' if torch else 'no Torch'}",
        "met": not torch and size < 200e6,
        "details": {"bytes": size, "torch": torch, "packages": names.splitlines()[2:]},
    }


def batching(short: bool) -> dict[str, Any]:
    """Decode tokens a second of 32 streams against one, through the server, interleaved."""
    repeats = 1 if short else 5
    size = (24, 32) if short else (128, 64)
    single: list[float] = []
    many: list[float] = []
    with ServerProcess(["--no-prefix-cache"]) as server:
        asyncio.run(decode_rate(server, 2, 0, *size))
        for repeat in range(repeats):
            single.append(asyncio.run(decode_rate(server, 1, 100 * repeat + 1, *size)))
            many.append(asyncio.run(decode_rate(server, 32, 100 * repeat + 50, *size)))
    ratios = [b / a for a, b in zip(single, many, strict=True)]
    return {
        "bar": "at least 6 times",
        "figure": f"{median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f}): {median(single):.0f} and "
        f"{median(many):.0f} tokens/s",
        "met": median(ratios) >= 6,
        "details": {"one": single, "thirty_two": many},
    }


async def decode_rate(server: ServerProcess, streams: int, seed: int, prompt: int = 128, output: int = 64) -> float:
    """Tokens a second while all streams decode, so many prompt and output tokens each.

    The window runs from the last stream's first token to the first stream's last token.
    """
    status, _ = await fetch(server.target, "GET", "/ready")
    assert status == 200
    bodies = [
        {
            "prompt": [(seed * 7919 + stream * 104729 + i * 31) % 40000 + 100 for i in range(prompt)],
            "max_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
        }
        for stream in range(streams)
    ]
    answers = await asyncio.gather(*(stream_once(server.target, "/v1/completions", body) for body in bodies))
    for answer in answers:
        assert answer.done and answer.completion_tokens == output, answer
    begin = max(answer.times[0] for answer in answers)
    end = min(answer.times[-1] for answer in answers)
    assert end > begin, "the streams did not overlap"
    # A token may carry no text of its own (half a character), so events are scaled to tokens.
    count = sum(
        sum(begin < moment <= end for moment in answer.times) * output / len(answer.times) for answer in answers
    )
    return count / (end - begin)
