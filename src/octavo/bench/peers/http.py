"""Engines through their HTTP servers: Octavo's, vLLM's and llama.cpp's, all driven by the client of `bench serve`.

Each server gets what `Room` says: as many requests at once, the same context, all threads, no reuse of prefixes.
OpenVINO GenAI has no server in its wheel (its server is a product of its own), and takes no part. Work is a closed
loop: `streams` users, two requests each, exact token ids, greedy, answers never end early.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from octavo.bench.peers.contender import WORKERS, Contender, Room, Work, changes, offline
from octavo.bench.peers.environments import Environment

SERVED = ("octavo", "vllm", "llamacpp")
NO_SERVER = {"openvino": "its wheel holds no HTTP server; it is measured through its Python API alone"}
_EACH = 2
"""Requests a user."""


def _work(users: int, prompt: int, output: int) -> Work:
    return Work(f"serve-{users}", users, prompt, output, "output", way="http", requests=_EACH * users)


HTTP_QUICK = (_work(8, 64, 32), _work(32, 32, 24))
HTTP_FULL = (_work(1, 128, 64), _work(8, 128, 64), _work(32, 128, 64))

_SAME = {"temperature": 0.0, "ignore_eos": True}
# Every token has text, special ones too: a token without text would be an event that nobody sees.
_FIELDS: dict[str, dict[str, Any]] = {
    "octavo": {**_SAME, "skip_special_tokens": False},
    "vllm": {**_SAME, "skip_special_tokens": False},
    "llamacpp": {**_SAME, "cache_prompt": False},
}
_READY = {"octavo": "/ready", "vllm": "/health", "llamacpp": "/health"}
"""Answers 200 when requests are taken."""


def http(peer: str, form: str, model: Path, environment: Environment | None, room: Room) -> Contender:
    """A server of the engine with this form."""
    assert peer in SERVED
    alone = offline(peer, form, model, environment, room)
    command = _command(peer, form, model, environment, room)
    return Contender(
        peer,
        form,
        (sys.executable, "-m", "octavo.bench.peers.workers.http_worker"),
        {
            "command": command,
            "ready": _READY[peer],
            "fields": _FIELDS[peer],
            "facts": {"server": " ".join(command[1:])},
        },
        {} if peer == "octavo" else changes(peer, room),
        alone.versions,
        way="http",
        need_bytes=alone.need_bytes,
    )


def vllm_type(form: str) -> str:
    """In which vLLM computes."""
    return "float32" if form == "fp32" else "bfloat16"


def vllm_command(environment: Environment) -> list[str]:
    """How vLLM's own command is started."""
    return [str(environment.python), str(WORKERS / "vllm_command.py")]


def _command(peer: str, form: str, model: Path, environment: Environment | None, room: Room) -> list[str]:
    address = ["--host", "127.0.0.1", "--port", "{port}"]
    if peer == "octavo":
        command = [sys.executable, "-m", "octavo.cli.main", "serve", str(model), *address]
        command += ["--kv-tokens", str(room.kv_tokens), "--max-num-seqs", str(room.max_streams)]
        return [*command, "--threads", str(room.threads), "--no-prefix-cache"]
    assert environment is not None
    if peer == "vllm":
        command = [*vllm_command(environment), "serve", str(model), *address, "--dtype", vllm_type(form)]
        command += ["--max-model-len", str(room.max_context), "--max-num-seqs", str(room.max_streams)]
        command += ["--max-num-batched-tokens", str(max(room.chunk, room.max_context)), "--seed", "0"]
        return [*command, "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    # Slots share the context evenly, so each has room for the longest request.
    context = room.max_streams * -(-room.max_context // 256) * 256
    command = [str(environment.program("llama-server")), "-m", str(model), *address, "-c", str(context)]
    command += ["--parallel", str(room.max_streams), "--no-kv-unified", "-b", str(room.chunk), "-ub", "512"]
    command += ["-t", str(room.threads), "-tb", str(room.threads), "--no-webui", "--no-cache-prompt"]
    return [*command, "--cache-ram", "0", "--special"]
