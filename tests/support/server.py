"""Starts a real server process and talks to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from octavo.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig, ServerConfig
from tests.support.serve import Serve

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0
ECHO = "tests.support.echo_engine"


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str]
    """What it has printed, both streams."""
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=30.0)

    # --- requests -----------------------------------------------------------------------------------

    def post(self, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self.client.post(path, content=content, headers={"content-type": "application/json"})

    def complete(self, **fields: Any) -> dict[str, Any]:
        """A completion's body."""
        return _ok(self.post("/v1/completions", fields))

    def chat(self, content: str = "hi", **fields: Any) -> dict[str, Any]:
        """A chat's body."""
        return _ok(self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields}))

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All events of a stream; it must end with [DONE]."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            return list(events(response.iter_lines()))

    # --- state --------------------------------------------------------------------------------------

    def metric(self, name: str, labels: str = "") -> float:
        text = self.client.get("/metrics").text
        found = re.search(rf"^{re.escape(name + labels)} (\S+)$", text, re.MULTILINE)
        assert found is not None, f"there is no metric {name}{labels}"
        return float(found.group(1))

    def idle(self) -> bool:
        """Nothing runs or waits, and every block is free."""
        return (
            self.metric("octavo_requests_running") == 0
            and self.metric("octavo_requests_waiting") == 0
            and self.metric("octavo_kv_blocks_free") == self.metric("octavo_kv_blocks")
        )

    def engine_pid(self) -> int:
        """The one child that is an engine."""
        found = [
            pid for pid in children(self.process.pid) if "--fd" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        ]
        assert len(found) == 1, found
        return found[0]

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM, and the exit status."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not end in {seconds} s:\n" + "\n".join(self.lines)) from None


def _ok(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The data of server-sent events, up to [DONE], after which nothing may come."""
    done = False
    for line in lines:
        if not line:
            continue
        assert not done, f"{line!r} came after [DONE]"
        assert line.startswith("data: "), line
        if line == "data: [DONE]":
            done = True
        else:
            yield msgspec.json.decode(line[6:])
    assert done, "the stream ended without [DONE]"


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> float:
    """Waits for a condition; how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - began


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """The process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def echo_config(path: Path, max_model_len: int = 1024, pool_tokens: int = 8192, **scheduler: Any) -> Serve:
    """A server on the echo engine with the tiny model's tokeniser."""
    engine = EngineConfig(
        model=ModelConfig(path=str(path), name="echo", max_model_len=max_model_len),
        kv=KVConfig(size_tokens=pool_tokens),
        scheduler=SchedulerConfig(**scheduler),
        validate_kv=True,
    )
    return Serve(engine, ServerConfig(port=0), ECHO)


def spawn(what: Serve) -> tuple[subprocess.Popen[str], list[str]]:
    """A server process whose output is collected."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.serve", msgspec.json.encode(what).decode()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []

    threading.Thread(target=_append, args=(process, lines), daemon=True).start()
    return process, lines


def _append(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip("\n"))


@contextmanager
def serving(what: Serve) -> Iterator[Server]:
    """A server that is ready; stopped and checked at the end."""
    process, lines = spawn(what)

    def url() -> str | None:
        said = [line for line in lines if line.startswith("Serving at ")]
        assert said or process.poll() is None, "the server ended:\n" + "\n".join(lines)
        return said[0].removeprefix("Serving at ").removesuffix("/v1") if said else None

    try:
        wait_until(lambda: url() is not None, "the server is ready", START_SECONDS)
        address = url()
        assert address is not None
        server = Server(process, address, lines)
        yield server
        if process.poll() is None:
            assert server.stop() == 0, "\n".join(lines)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
