"""What is compared, in plain values: the work, who does it and how, and what came of it. No process, no clock.

A *contender* is an engine with one form of the model's weights, driven one way: through its Python API ("offline") or
through its HTTP server ("http"). Ratios are only taken between contenders that are driven the same way.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.bench.peers.environments import SOURCE_PACKAGE, Environment, folder_of
from octavo.config import SchedulerConfig

WORKERS = Path(__file__).parent / "workers"


@dataclass(frozen=True)
class Work:
    """Requests of one length, with exactly `output` tokens for each: handed in at once, or in a closed loop."""

    name: str
    streams: int
    prompt: int
    output: int
    figure: str
    """Which rate the table compares: "decode", "prefill", or "output" (of the whole run, prompts included)."""
    way: str = "offline"
    """Only contenders that are driven this way do it."""
    requests: int = 0
    """More than streams: a closed loop, in which each stream sends its next request when its last is answered."""

    @property
    def unit(self) -> str:
        return "prompt tokens a second" if self.figure == "prefill" else "output tokens a second"

    @property
    def count(self) -> int:
        """Of all requests."""
        return self.requests or self.streams

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache, whole blocks of 32 and one more for each stream."""
        return self.streams * (-(-(self.prompt + self.output) // 32) + 1) * 32


QUICK = (
    Work("decode-1", 1, 64, 48, "decode"),
    Work("decode-8", 8, 64, 32, "decode"),
    Work("decode-32", 32, 32, 24, "decode"),
    Work("prefill-512", 1, 512, 1, "prefill"),
)
FULL = (
    Work("decode-1", 1, 128, 64, "decode"),
    Work("decode-8", 8, 128, 64, "decode"),
    Work("decode-32", 32, 128, 64, "decode"),
    Work("decode-128", 128, 128, 64, "decode"),
    Work("prefill-512", 1, 512, 1, "prefill"),
    Work("prefill-4000", 1, 4000, 1, "prefill"),
    Work("context-4000", 8, 4000, 32, "decode"),
)
"""The names say what they are: streams at once, tokens of a prompt, or tokens of context with eight streams."""


@dataclass(frozen=True)
class Room:
    """What every engine is given, so that all do the same work in the same space."""

    max_streams: int
    max_context: int
    """Tokens of the longest prompt with its answer."""
    kv_tokens: int
    threads: int
    chunk: int = 2048
    """Token budget of a step of the other engines; Octavo keeps its default."""


def room_for(works: tuple[Work, ...], threads: int) -> Room:
    """Holds every work whole, so nothing waits and nothing is preempted."""
    return Room(
        max_streams=max(work.streams for work in works),
        max_context=max(work.prompt + work.output for work in works) + 32,
        kv_tokens=max(work.kv_tokens for work in works),
        threads=threads,
    )


@dataclass(frozen=True, eq=False)
class Contender:
    """See the module. `command` starts a worker (`workers/loop.py`); `load` is what it is told first."""

    peer: str
    form: str
    command: tuple[str, ...]
    load: dict[str, Any]
    changes: dict[str, str] = field(default_factory=dict)
    """Environment variables of the worker."""
    versions: dict[str, str] = field(default_factory=dict)
    way: str = "offline"
    need_bytes: int = 1 << 30
    """Memory that it is expected to take."""

    @property
    def name(self) -> str:
        return f"{self.peer} {self.form}" + ("" if self.way == "offline" else f" {self.way}")


@dataclass(frozen=True)
class Timing:
    """One run as a worker tells it. Times are seconds from the moment all requests were handed in."""

    seconds: float
    first: tuple[float, ...] | None
    """Each request's first token; None where the engine's API cannot tell."""
    last: tuple[float, ...] | None
    late: int | None
    """Tokens that came after the moment of the last request's first token."""
    counts: tuple[int, ...]
    """Tokens of each answer."""
    extra: dict[str, float]


@dataclass(frozen=True)
class Sample:
    """One contender's run of one work."""

    contender: str
    work: str
    round: int
    group: int
    """Contenders of one group were loaded together; only they are compared."""
    order: int
    """Its turn within the round and work."""
    seconds: float
    prefill_rate: float
    decode_rate: float
    output_rate: float
    extra: dict[str, float]

    def rate(self, figure: str) -> float:
        return {"decode": self.decode_rate, "prefill": self.prefill_rate, "output": self.output_rate}[figure]


def rates(work: Work, timing: Timing, first_run: float | None) -> tuple[float, float, float]:
    """Prefill, decode and output tokens a second.

    first_run: seconds of a run of its own with one output token, where the timing holds no first tokens.
    """
    tokens = work.count * work.output
    if timing.first is not None and timing.last is not None:
        begin, end = max(timing.first), max(timing.last)
        late = timing.late if timing.late is not None else tokens - work.count
    else:
        assert first_run is not None
        begin, end, late = first_run, timing.seconds, tokens - work.count
    decode = late / (end - begin) if work.output > 1 and end > begin else 0.0
    return work.count * work.prompt / begin, decode, tokens / timing.seconds


def offline(peer: str, form: str, model: Path, environment: Environment | None, room: Room) -> Contender:
    """An engine through its Python API; llama.cpp, which has none, through its own batch program."""
    load: dict[str, Any] = {
        "model": str(model),
        "form": form,
        "threads": room.threads,
        "max_streams": room.max_streams,
        "max_context": room.max_context,
        "kv_tokens": room.kv_tokens,
        "chunk": room.chunk,
    }
    if peer == "octavo":
        load["chunk"] = SchedulerConfig().max_num_batched_tokens
        command = (sys.executable, "-m", "octavo.bench.peers.workers.octavo_worker")
        return Contender(peer, form, command, load, need_bytes=_need(peer, model, room))
    assert environment is not None
    python = sys.executable if peer == "llamacpp" else str(environment.python)
    if peer == "llamacpp":
        load["program"] = str(environment.program("llama-batched-bench"))
        load["version"] = environment.versions[SOURCE_PACKAGE]
    return Contender(
        peer,
        form,
        (python, "-u", str(WORKERS / f"{peer}_worker.py")),
        load,
        changes(peer, room),
        environment.versions,
        need_bytes=_need(peer, model, room),
    )


def changes(peer: str, room: Room) -> dict[str, str]:
    """Environment variables for a peer: no network, no statistics, all threads (vLLM would keep a core for itself)."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": str(room.threads)}
    if peer == "vllm":
        cache = folder_of(peer) / "cache"
        cpus = sorted(os.sched_getaffinity(0))[: room.threads]
        gib = -(-room.kv_tokens * KV_BYTES // (1 << 30))
        quiet |= {
            "VLLM_CPU_KVCACHE_SPACE": str(gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(cpu) for cpu in cpus),
            "VLLM_CACHE_ROOT": str(cache),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "DO_NOT_TRACK": "1",
        }
    return quiet


KV_BYTES = 1 << 16
"""Bytes of a token's keys and values in float32, rounded up, for pools in gibibytes: small models have less."""
_BASE_BYTES = {"octavo": 1 << 28, "vllm": 3 << 30, "openvino": 1 << 30, "llamacpp": 1 << 29}


def _need(peer: str, model: Path, room: Room) -> int:
    """Weights twice (a file and a packed copy), KV, and what the engine takes for itself."""
    paths = [model] if model.is_file() else [path for path in model.rglob("*") if path.is_file()]
    weights = sum(path.stat().st_size for path in paths)
    return _BASE_BYTES[peer] + 2 * weights + room.kv_tokens * KV_BYTES
