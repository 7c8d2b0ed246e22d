"""uvicorn around the application: the start-up report and signals.

The first SIGTERM or SIGINT drains: no new connections, open requests have `drain_seconds`, then they are ended with a
reason. A second one ends the process at once, without a word. `timeout` and shells signal a process and then its whole
group: what comes within `_SAME_SIGNAL_SECONDS` is the first one still. SIGHUP reads keys and certificate again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType

import uvicorn

from octavo.config import ConfigError, EngineConfig, ServerConfig
from octavo.engine.supervisor import EngineProcess
from octavo.server.app import create_app
from octavo.server.connection import Connection, connections
from octavo.server.log import DescriptorWatch, on_terminal
from octavo.server.run import SIGNALS, ignore_signals
from octavo.server.service import Fetch, Service
from octavo.server.tls import load as load_certificate
from octavo.server.tls import make_context
from octavo.types import Progress, Ready

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 2.0
"""After the drain, for the last answers to leave."""
_SAME_SIGNAL_SECONDS = 0.2
_TICKS_A_SECOND = 10


class Runner:
    """One server and what it says on the terminal."""

    def __init__(
        self,
        engine: EngineConfig,
        config: ServerConfig,
        url: str,
        command: Sequence[str],
        process: EngineProcess | None,
        fetch: Fetch | None = None,
    ) -> None:
        """process: the engine's first life, already loading. Without one, `fetch` gets its model first."""
        self.status = 0
        self._url = url
        self._said: str | None = None
        self._service = Service(
            engine,
            config,
            process=process,
            fetch=fetch,
            on_ready=self._ready,
            on_failure=self._failed,
            on_progress=self._progress,
            command=command,
        )
        self._tls = make_context(config)
        self._config = uvicorn.Config(
            create_app(self._service),
            log_config=None,
            access_log=config.access_log,
            http=connections(config),
            server_header=False,
            ws="none",
            lifespan="on",
            timeout_keep_alive=config.keep_alive_seconds,
            timeout_graceful_shutdown=int(config.drain_seconds + _GRACE_SECONDS),
        )
        self._config.load()
        self._config.ssl = self._tls
        self._server = _Server(self._config, self._service, self._tls)
        live = self._service.metrics.live
        live["connections"] = lambda: len(self._server.server_state.connections)
        live["tasks"] = lambda: len(asyncio.all_tasks())

    def serve(self, listener: socket.socket) -> int:
        """Serves until a signal or a failed start; the exit status."""
        factory: Callable[[], asyncio.AbstractEventLoop] | None = self._config.get_loop_factory()
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(self._server.serve(sockets=[listener]))
        return self.status

    def _progress(self, progress: Progress) -> None:
        if progress.what != self._said:
            self._said = progress.what
            logger.info(progress.what)

    def _ready(self, ready: Ready) -> None:
        print(f"{ready.info.name}")
        for line in ready.report:
            print(f"  {line}")
        print(f"Serving at {self._url}/v1", flush=True)
        if not on_terminal():
            logger.info("Serving %s at %s/v1", ready.info.name, self._url)

    def _failed(self, reason: str) -> None:
        # In one write: the log's thread writes to the same stream, and would come before a line end of its own.
        sys.stderr.write(f"Error: {reason}\n")
        sys.stderr.flush()
        self.status = 1
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn with our signals: drain, then end."""

    def __init__(self, config: uvicorn.Config, service: Service, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signalled_at = 0.0
        self._descriptors = DescriptorWatch()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in SIGNALS:
            signal.signal(number, self.handle_exit)
        if self._reloadable():
            signal.signal(signal.SIGHUP, self._hang_up)
        try:
            yield
        finally:
            ignore_signals()

    def _reloadable(self) -> bool:
        """SIGHUP ends a server that has no files to read again, as it ends any program whose terminal is gone."""
        config = self._service.config
        return self._tls is not None or config.api_keys is not None or config.admin_key_file is not None

    def _hang_up(self, sig: int, frame: FrameType | None) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._reload)

    def _reload(self) -> None:
        """Keys and certificate, each as the file is now or as it was before."""
        parts: list[tuple[str, Callable[[], None]]] = [("API and admin keys", self._service.access.reload)]
        if self._tls is not None:
            parts.append(("the certificate", partial(load_certificate, self._tls, self._service.config)))
        for what, reload in parts:
            try:
                reload()
            except ConfigError as error:
                logger.error("%s stay as they were: %s", what, error)
            else:
                logger.info("Read again: %s", what)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_A_SECOND == 0:
            self._descriptors.check()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._signalled_at:
            self._signalled_at = now
            self.should_exit = True
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._drain)
        elif now - self._signalled_at >= _SAME_SIGNAL_SECONDS:
            self._service.client.kill()
            os._exit(128 + sig)

    def _drain(self) -> None:
        count = sum(isinstance(each, Connection) and each.answering() for each in self.server_state.connections)
        if count:
            logger.info(
                "Draining %d request%s, up to %g s; a second signal stops at once",
                count,
                "" if count == 1 else "s",
                self._service.config.drain_seconds,
            )
        else:
            logger.info("Stopping; no request is open")
        self._service.drain()
