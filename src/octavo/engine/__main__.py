"""The engine process: `python -m octavo.engine --fd N`, started by the client over a socket pair.

Life: configuration in -> `Progress` while weights load -> `Ready` -> the step loop -> exit 0 after `Drain` or
`Shutdown`, or at once when the parent is gone. While there is work the channel is drained without blocking between
steps; when idle the process sleeps in the channel. A step sends at most one message.
SIGINT and SIGTERM are left to the parent, which decides when and how the engine ends.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Protocol

from octavo.config import EngineConfig
from octavo.engine.channel import ChildChannel, PeerGone
from octavo.engine.core import EngineCore
from octavo.models.files import sentence
from octavo.types import Drain, Executor, Fatal, Progress, Shutdown


class LoadedExecutor(Executor, Protocol):
    """What the factory returns: an executor, the configuration it settled on and what to tell the user."""

    config: EngineConfig
    report: tuple[str, ...]


ExecutorFactory = Callable[[EngineConfig, Callable[[str, float | None], None]], LoadedExecutor]

_PR_SET_PDEATHSIG = 1
_FLUSH_SECONDS = 10.0
_IDLE_SECONDS = 1.0
"""Without work for this long, the engine recounts its blocks once."""


def serve(fd: int, build_executor: ExecutorFactory) -> int:
    """Runs an engine on the inherited socket `fd`; returns the exit status."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = ChildChannel(socket.socket(fileno=fd))
    try:
        return _run(channel, build_executor)
    except PeerGone:
        return 0


def _run(channel: ChildChannel, build_executor: ExecutorFactory) -> int:
    config = channel.receive_config()

    def progress(what: str, fraction: float | None = None) -> None:
        channel.send(Progress(what, fraction))

    try:
        executor = build_executor(config, progress)
    except (ValueError, OSError, MemoryError) as error:
        return _fatal(channel, sentence(error) or type(error).__name__)
    except PeerGone:
        raise
    except Exception as error:
        traceback.print_exc()
        return _fatal(channel, f"the engine cannot start: {type(error).__name__}: {error}")
    try:
        core = EngineCore(executor.config, executor)
        channel.send(core.ready(executor.report))
        return _loop(channel, core)
    except PeerGone:
        raise
    except Exception as error:
        traceback.print_exc()
        return _fatal(channel, f"the engine failed: {type(error).__name__}: {error}")
    finally:
        executor.close()


def _loop(channel: ChildChannel, core: EngineCore) -> int:
    draining = False
    unchecked = False
    while True:
        idle = not core.has_work and not draining
        messages = channel.poll(0.0 if not idle else _IDLE_SECONDS if unchecked else None)
        if idle and not messages and unchecked:
            core.validate()
            unchecked = False
        for message in messages:
            if isinstance(message, Shutdown):
                return 0
            draining = draining or isinstance(message, Drain)
            core.handle(message)
        if core.has_work:
            unchecked = True
            output = core.step()
            if output is not None:
                channel.send(output)
        elif draining:
            channel.flush(_FLUSH_SECONDS)
            return 0


def _fatal(channel: ChildChannel, message: str) -> int:
    channel.send(Fatal(message))
    channel.flush(_FLUSH_SECONDS)
    return 1


def _die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that spawned it ends (Linux; elsewhere end of file does)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m octavo.engine", description="Started by the client, not by hand.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the client")
    arguments = parser.parse_args()
    from octavo.execution.factory import build_executor

    return serve(arguments.fd, build_executor)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
