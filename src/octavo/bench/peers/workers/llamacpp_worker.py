"""llama.cpp as a worker, through its own program for batches (`llama-batched-bench`): all streams in one batch.

Each run is a process of its own, whose start and loading are not counted: the program tells the seconds of the prompts
and of the answers. It computes tokens drawn at random and samples nothing, which favours it. (Its server's slots are
measured apart, through HTTP.)
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from loop import serve

_BLOCK = 256


class LlamaCpp:
    """See `loop.py`."""

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        self._settings = settings
        found = self._bench([[0] * 16], 2)
        return {
            "version": settings["version"],
            "kv": "f16",
            "flash attention": {-1: "auto", 0: "off", 1: "on"}.get(found["flash_attn"], "unknown"),
            "threads": found["n_threads"],
        }

    def run(self, prompts: list[list[int]], output: int) -> dict[str, Any]:
        """The first token of an answer comes with its prompt, so one less is decoded (the program takes no 0)."""
        found = self._bench(prompts, max(1, output - 1))
        streams, begin = len(prompts), found["t_pp"]
        end = begin + found["t_tg"] if output > 1 else begin
        return {
            "seconds": end,
            "first": [begin] * streams,
            "last": [end] * streams,
            "late": streams * (output - 1),
            "counts": [output] * streams,
            "extra": {},
        }

    def _bench(self, prompts: list[list[int]], decoded: int) -> dict[str, Any]:
        settings, streams, prompt = self._settings, len(prompts), len(prompts[0])
        context = streams * -(-(prompt + decoded + 1) // _BLOCK) * _BLOCK
        command = [settings["program"], "-m", settings["model"], "-c", str(context), "-b", str(settings["chunk"])]
        command += ["-ub", "512", "-t", str(settings["threads"]), "-tb", str(settings["threads"])]
        command += ["-npp", str(prompt), "-ntg", str(decoded), "-npl", str(streams), "--output-format", "jsonl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or len(rows) != 1:
            print(done.stdout, done.stderr, flush=True)
            raise RuntimeError(f"llama-batched-bench ended with status {done.returncode} and {len(rows)} results")
        row: dict[str, Any] = rows[0]
        return row

    def close(self) -> None:
        """A run leaves nothing."""


if __name__ == "__main__":
    serve(LlamaCpp())
