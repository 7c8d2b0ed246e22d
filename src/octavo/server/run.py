"""Runs the server in this process: the socket, the start-up report, signals.

The port is bound first, so that a busy one is told before the model loads; HTTP answers while it loads. The first
SIGTERM or SIGINT drains: no new connections, open requests have `drain_seconds`, then they are ended with a reason.
A second one ends everything at once. The engine never outlives this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import uvicorn

from octavo.config import EngineConfig, ServerConfig
from octavo.engine.client import ENGINE_COMMAND
from octavo.server.app import create_app
from octavo.server.service import Service
from octavo.types import Progress, Ready

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_SECONDS = 5.0


def run(engine: EngineConfig, config: ServerConfig, command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Serves until a signal or a failed start; returns the exit status."""
    try:
        listener = _bind(config)
    except OSError as error:
        print(f"Error: cannot listen on {config.host}:{config.port}: {error.strerror}; try --port 0", file=sys.stderr)
        return 1
    url = _url(config.host, listener.getsockname()[1])
    runner = _Runner(engine, config, url, command)
    with asyncio.Runner(loop_factory=runner.loop_factory()) as loop:
        loop.run(runner.server.serve(sockets=[listener]))
    return runner.status


class _Runner:
    """One server and what it says on the terminal."""

    def __init__(self, engine: EngineConfig, config: ServerConfig, url: str, command: Sequence[str]) -> None:
        self.status = 0
        self._url = url
        self._said: str | None = None
        self._service = Service(
            engine,
            config,
            on_ready=self._ready,
            on_failure=self._failed,
            on_progress=self._progress,
            command=command,
        )
        self._config = uvicorn.Config(
            create_app(self._service),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="on",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(config.drain_seconds + _GRACE_SECONDS),
        )
        self.server = _Server(self._config, self._service)

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        return self._config.get_loop_factory()

    def _progress(self, progress: Progress) -> None:
        if progress.what != self._said:
            self._said = progress.what
            print(progress.what, file=sys.stderr, flush=True)

    def _ready(self, ready: Ready) -> None:
        print(f"{ready.info.name}")
        for line in ready.report:
            print(f"  {line}")
        print(f"Serving at {self._url}/v1", flush=True)

    def _failed(self, reason: str) -> None:
        print(f"Error: {reason}", file=sys.stderr, flush=True)
        self.status = 1
        self.server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn with our signals: drain, then end."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
            self._service.client.kill()
            return
        self.should_exit = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._service.drain)


def _bind(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def _url(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"
