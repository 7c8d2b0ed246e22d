"""`octavo run` over a file, killed with SIGKILL, against an undisturbed run over the same file."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.small import small_model

_CHAT = "/v1/chat/completions"
_WORDS = ("river", "a printing press", "seven sheets", "the margin", "why", "folded", "Paris", "count", "slowly", "ink")
_START_SECONDS = 120.0


def run_kills(short: bool) -> dict[str, Any]:
    """2 000 prompts of all kinds, three kills (short: 200 prompts, on a small model)."""
    if short:
        with small_model() as model:
            return _run_kills(200, 24, [str(model), "--window", "16"])
    return _run_kills(2000, 48, [])


def _run_kills(count: int, longest: int, model: list[str]) -> dict[str, Any]:
    """model: arguments of the command that come first."""
    seed = random.SystemRandom().randrange(1 << 31)
    with tempfile.TemporaryDirectory() as folder:
        source, calm, killed = (Path(folder) / name for name in ("in.jsonl", "calm.jsonl", "killed.jsonl"))
        source.write_text("".join(json.dumps(line) + "\n" for line in make_lines(count, longest, seed)))
        began = time.monotonic()
        _finish(_start(model, source, calm))
        seconds = time.monotonic() - began
        kept = _kill_thrice(model, source, killed, count, random.Random(seed))
        _finish(_start(model, source, killed))
        same = _same(calm.read_bytes(), killed.read_bytes())
        lines = [_line_of(json.loads(line)) for line in killed.read_bytes().splitlines()]
    twice = len(lines) - len(set(lines))
    killed_there = len(set(kept)) == len(kept) and kept[-1] < count
    return {
        "bar": f"killed three times: {count} results, none twice, equal to an undisturbed run",
        "figure": f"killed at {', '.join(map(str, kept))} results: {len(lines)} of {count} in the end, {twice} twice, "
        f"{'equal' if same else 'NOT equal'}; undisturbed {seconds:.0f} s",
        "met": same and killed_there and sorted(set(lines)) == list(range(1, count + 1)) and not twice,
        "details": {"seed": seed, "kept": kept, "seconds": seconds},
    }


def make_lines(count: int, longest: int, seed: int) -> list[Any]:
    """Completions, chats, batch lines, bare texts, several choices and a few wrong ones."""
    drawn = random.Random(seed)
    lines: list[Any] = []
    for number in range(count):
        text = " ".join(drawn.choices(_WORDS, k=drawn.randint(1, 40)))
        message = [{"role": "user", "content": text}]
        tokens = {"max_tokens": drawn.randint(1, longest)}
        kinds: list[Any] = [
            {"prompt": text, "id": number, **tokens},
            {"messages": message, "temperature": drawn.choice([0, 0.7, 1.5]), **tokens},
            {"custom_id": f"c{number}", "method": "POST", "url": _CHAT, "body": {"messages": message, **tokens}},
            text,
            {"prompt": text, "n": 3, "logprobs": 2, **tokens},
            {"prompt": text, "temperature": -1},
        ]
        lines.append(drawn.choices(kinds, [6, 6, 4, 2, 2, 1])[0])
    return lines


def _start(model: list[str], source: Path, target: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "octavo.cli.main", "run", *model, str(source), "-o", str(target)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _finish(process: subprocess.Popen[bytes]) -> None:
    errors = process.communicate()[1].decode()
    if process.returncode != 1 or "errors" not in errors:  # some lines are wrong on purpose
        raise RuntimeError(f"octavo run ended with {process.returncode}: {errors}")


def _kill_thrice(model: list[str], source: Path, target: Path, count: int, drawn: random.Random) -> list[int]:
    """How many results there were after each kill. Results come in bursts, so each time there are more than before."""
    kept: list[int] = []
    for left in (4, 3, 2):
        before = kept[-1] if kept else 0
        kept.append(_killed(model, source, target, before + 1 + drawn.randrange(max(1, (count - before) // left))))
    return kept


def _killed(model: list[str], source: Path, target: Path, at: int) -> int:
    """Runs until so many results are there, kills it, and says how many whole ones it left."""
    process = _start(model, source, target)
    deadline = time.monotonic() + _START_SECONDS + at
    while _count(target) < at and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.communicate()
    return _count(target)


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _line_of(result: dict[str, Any]) -> int:
    return int(result.get("line") or str(result["id"]).rpartition("_")[2])


def _same(calm: bytes, killed: bytes) -> bool:
    """Byte for byte, but for what a batch answer says of its time and of the cache."""
    ours, theirs = calm.splitlines(keepends=True), killed.splitlines(keepends=True)
    return len(ours) == len(theirs) and all(
        a == b or _timeless(json.loads(a)) == _timeless(json.loads(b)) for a, b in zip(ours, theirs, strict=True)
    )


def _timeless(result: dict[str, Any]) -> dict[str, Any]:
    body = (result.get("response") or {}).get("body") or {}
    body.pop("created", None)
    body.get("usage", {}).pop("prompt_tokens_details", None)
    return result
