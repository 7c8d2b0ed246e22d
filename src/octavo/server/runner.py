"""uvicorn around the application: the start-up report and signals.

The first SIGTERM or SIGINT drains: no new connections, open requests have `drain_seconds`, then they are ended with a
reason. A second one ends everything at once.
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
from octavo.engine.supervisor import EngineProcess
from octavo.server.app import create_app
from octavo.server.service import Service
from octavo.types import Progress, Ready

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_SECONDS = 5.0


class Runner:
    """One server and what it says on the terminal."""

    def __init__(
        self, engine: EngineConfig, config: ServerConfig, url: str, command: Sequence[str], process: EngineProcess
    ) -> None:
        """process: the engine's first life, already loading."""
        self.status = 0
        self._url = url
        self._said: str | None = None
        self._service = Service(
            engine,
            config,
            process=process,
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
        self._server = _Server(self._config, self._service)

    def serve(self, listener: socket.socket) -> int:
        """Serves until a signal or a failed start; the exit status."""
        factory: Callable[[], asyncio.AbstractEventLoop] | None = self._config.get_loop_factory()
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(self._server.serve(sockets=[listener]))
        return self.status

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
        self._server.should_exit = True


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
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
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
