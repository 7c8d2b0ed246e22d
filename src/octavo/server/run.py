"""Runs the server in this process.

The port is bound first, so that a busy one is told before anything is fetched or loaded. Where the model's files are on
this machine, the engine is spawned at once, and loads while this process imports the HTTP side. Where they are not,
the server comes first, and answers 503 with the progress while they are downloaded: no client hangs for the length of
a download without a word. The engine never outlives this process.
"""

from __future__ import annotations

import errno
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import FrameType

import octavo
from octavo.config import ConfigError, EngineConfig, ModelConfig, ServerConfig, is_loopback
from octavo.engine.guard import open_standard_streams
from octavo.engine.supervisor import ENGINE_COMMAND, EngineProcess
from octavo.models.locate import cached_model, locate_model, with_files
from octavo.models.spec import ModelError
from octavo.models.store import Report, terminal_report
from octavo.server import log

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_SEND_BUFFER = 128 * 1024
"""Of each connection in the system, which doubles it: what slow readers leave there is bounded."""
_OTHER_DESCRIPTORS = 128
"""Files, pipes and sockets beside the connections."""


def run_server(engine: EngineConfig, config: ServerConfig, command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Serves until a signal or a failed start; returns the exit status.

    The process is to end then: signals are ignored from there on, so that a late one prints no traceback.
    """
    open_standard_streams()
    for number in SIGNALS:
        signal.signal(number, _leave)
    process: EngineProcess | None = None
    try:
        listener = bind(config)
        log.configure(config.access_log)
        raise_descriptor_limit(config.max_connections)
        _warn_of_strangers(config)
        url = _url(config, listener.getsockname()[1])
        logger.info("Starting octavo %s; it will serve at %s", octavo.__version__, url)
        fetch = None
        if (found := cached_model(engine.model.path)) is not None:
            engine = replace(engine, model=with_files(engine.model, found))
            process = EngineProcess.spawn(command, engine)
        else:
            fetch = partial(_fetch, engine.model)
        from octavo.server.runner import Runner

        return Runner(engine, config, url, command, process, fetch).serve(listener)
    except (ConfigError, ModelError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    finally:
        if process is not None:
            process.kill()
        ignore_signals()


def _fetch(model: ModelConfig, report: Report) -> ModelConfig:
    """Tells the terminal too."""
    show = terminal_report()

    def both(what: str, fraction: float | None) -> None:
        report(what, fraction)
        show(what, fraction)

    return locate_model(model, both)


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    """A signal before there is anything to drain."""
    ignore_signals()
    raise SystemExit(0)


def _warn_of_strangers(config: ServerConfig) -> None:
    """Whoever reaches the address may use the server."""
    if not is_loopback(config.host) and config.api_keys is None:
        logger.warning(
            "--host %s lets others in, and there is no --api-keys: whoever reaches it may use it", config.host
        )


def raise_descriptor_limit(connections: int) -> None:
    """A connection is a file descriptor: takes as many as the system lets this process have, and says if it is few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        logger.warning(
            "--max-connections %d is more than the %d file descriptors that this process may have allow; "
            "raise it with ulimit -Hn, or --max-connections %d would work",
            connections,
            most,
            max(1, most - _OTHER_DESCRIPTORS),
        )


def bind(config: ServerConfig) -> socket.socket:
    """Listens; ConfigError says whether it is the host or the port that is wrong."""
    if not config.host.strip():
        raise ConfigError("--host is empty; --host 127.0.0.1 would work")
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {config.host!r} is no address or name that this machine can resolve; --host 127.0.0.1 would work"
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"--host {config.host} is not this machine's; --host 127.0.0.1 would work") from error
        where = f"--port {config.port} on --host {config.host}"
        raise ConfigError(f"cannot listen on {where}: {error.strerror}; --port 0 would take a free one") from error
    return listener


def _url(config: ServerConfig, port: int) -> str:
    host = config.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'http' if config.tls_cert is None else 'https'}://{shown}:{port}"
