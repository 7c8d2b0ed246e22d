"""The benchmarks that other engines bring along: how each is asked for a given work, and what its output says.

All give the rate that a case compares, one value a repetition, as the tool itself reports it:

- `vllm bench latency`: seconds of whole batches; output tokens over them (prompts and start of the batch included).
- `vllm bench throughput`: requests a second of one run, times the output tokens of a request.
- `llama-bench`: tokens a second of one stream, the answer's at the depth of the prompt; no sampling.
- `llama-batched-bench`: tokens a second of the answers' part (S_TG), all streams in one batch; no sampling.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.peers.contender import Room, Work
from octavo.bench.peers.environments import Environment
from octavo.bench.peers.http import vllm_command, vllm_type

_BLOCK = 256


class ToolError(RuntimeError):
    """One line: what a tool's output lacks."""


@dataclass(frozen=True)
class Given:
    """A form of a model, its engine, and what the engine is given."""

    form: str
    model: Path
    environment: Environment
    room: Room


@dataclass(frozen=True)
class Call:
    """One run of a tool: what to start, and how to read what it printed and wrote."""

    command: tuple[str, ...]
    rates: Callable[[str, Path], list[float]]
    """(standard output, the file that it was told to write) -> a rate a repetition."""


def vllm_latency(given: Given, work: Work, repeats: int, out: Path) -> Call:
    command = [*_vllm(given, "latency"), "--input-len", str(work.prompt)]
    command += ["--output-len", str(work.output), "--batch-size", str(work.streams), "--num-iters-warmup", "1"]
    command += ["--num-iters", str(repeats), "--disable-detokenize", "--output-json", str(out)]
    return Call(tuple(command), lambda printed, written: read_latency(written.read_text(), work))


def vllm_throughput(given: Given, work: Work, repeats: int, out: Path) -> Call:
    """One value, whatever the repeats: the tool runs once."""
    command = [*_vllm(given, "throughput"), "--dataset-name", "random"]
    command += ["--random-input-len", str(work.prompt), "--random-output-len", str(work.output)]
    command += ["--random-range-ratio", "0", "--num-prompts", str(work.count), "--num-warmups", str(work.count)]
    command += ["--disable-detokenize", "--output-json", str(out)]
    return Call(tuple(command), lambda printed, written: read_throughput(written.read_text(), work))


def _vllm(given: Given, which: str) -> list[str]:
    room = given.room
    command = [*vllm_command(given.environment), "bench", which, "--model", str(given.model)]
    command += ["--dtype", vllm_type(given.form)]
    command += ["--max-model-len", str(room.max_context), "--max-num-seqs", str(room.max_streams), "--seed", "0"]
    command += ["--max-num-batched-tokens", str(max(room.chunk, room.max_context)), "--no-enable-prefix-caching"]
    return command


def llama_bench(given: Given, work: Work, repeats: int, out: Path) -> Call:
    assert work.streams == 1, "llama-bench runs one stream"
    command = [str(given.environment.program("llama-bench")), "-m", str(given.model)]
    command += ["-p", "0", "-n", str(work.output - 1), "-d", str(work.prompt)]
    command += ["-r", str(repeats), "-t", str(given.room.threads), "-o", "json"]
    return Call(tuple(command), lambda printed, written: read_llama_bench(printed))


def llama_batched(given: Given, work: Work, repeats: int, out: Path) -> Call:
    """The list of batch sizes names this one `repeats` times."""
    room = given.room
    context = work.streams * -(-(work.prompt + work.output) // _BLOCK) * _BLOCK
    command = [str(given.environment.program("llama-batched-bench")), "-m", str(given.model), "-c", str(context)]
    command += ["-b", str(room.chunk), "-ub", "512", "-t", str(room.threads), "-tb", str(room.threads)]
    command += ["-npp", str(work.prompt), "-ntg", str(work.output - 1)]
    command += ["-npl", ",".join([str(work.streams)] * repeats), "--output-format", "jsonl"]
    return Call(tuple(command), lambda printed, written: read_batched(printed))


# --- what they print ------------------------------------------------------------------------------


def read_latency(text: str, work: Work) -> list[float]:
    """The file of `vllm bench latency --output-json`."""
    found = _field(text, "latencies")
    if not isinstance(found, list):
        raise ToolError("its latencies are no list")
    return [work.count * work.output / _positive(seconds, "latencies") for seconds in found]


def read_throughput(text: str, work: Work) -> list[float]:
    """The file of `vllm bench throughput --output-json`."""
    return [_positive(_field(text, "requests_per_second"), "requests_per_second") * work.output]


def read_llama_bench(text: str) -> list[float]:
    """`llama-bench -o json` of one test; its samples."""
    found = _decode(text)
    if not isinstance(found, list) or len(found) != 1:
        raise ToolError("llama-bench printed no single test")
    return [_positive(rate, "samples_ts") for rate in found[0].get("samples_ts", ())]


def read_batched(text: str) -> list[float]:
    """`llama-batched-bench --output-format jsonl`, among lines of its log."""
    rows = [_decode(line) for line in text.splitlines() if line.startswith("{")]
    if not rows:
        raise ToolError("llama-batched-bench printed no result")
    return [_positive(row.get("speed_tg"), "speed_tg") for row in rows]


def _field(text: str, name: str) -> Any:
    found = _decode(text)
    if not isinstance(found, dict) or name not in found:
        raise ToolError(f"its output has no {name}")
    return found[name]


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ToolError(f"its output is no JSON: {text.strip()[:80]!r}") from error


def _positive(value: object, name: str) -> float:
    if not isinstance(value, int | float) or value <= 0:
        raise ToolError(f"its {name} is {value!r}, not a rate or a time")
    return float(value)
