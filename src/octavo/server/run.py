"""Runs the server in this process.

The port is bound first, so that a busy one is told before the model loads. Then the engine is spawned, and loads
while this process imports the HTTP side. The engine never outlives this process.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType

from octavo.config import EngineConfig, ServerConfig
from octavo.engine.supervisor import ENGINE_COMMAND, EngineProcess


def run_server(engine: EngineConfig, config: ServerConfig, command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Serves until a signal or a failed start; returns the exit status."""
    try:
        listener = _bind(config)
    except OSError as error:
        print(f"Error: cannot listen on {config.host}:{config.port}: {error.strerror}; try --port 0", file=sys.stderr)
        return 1
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    process = EngineProcess.spawn(command, engine)
    try:
        from octavo.server.runner import Runner

        url = _url(config.host, listener.getsockname()[1])
        return Runner(engine, config, url, command, process).serve(listener)
    finally:
        process.kill()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    """A signal before there is anything to drain."""
    raise SystemExit(0)


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
