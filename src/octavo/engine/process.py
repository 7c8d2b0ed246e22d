"""The engine process: what `python -m octavo.engine` runs for the client, over a socket pair.

Life: configuration in -> `Progress` while weights load -> `Ready` -> the step loop -> exit 0 after `Drain` or
`Shutdown`, or at once when the parent is gone. While there is work the channel is drained without blocking between
steps; when idle the process sleeps in the channel, and beats once a second. A step sends at most one message. What it
does is in the journal, if it was given one.
SIGINT and SIGTERM are left to the parent, which decides when and how the engine ends. An exception in a step ends the
engine: the parent finds out whose request it was.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Protocol

from octavo.config import ConfigError, EngineConfig
from octavo.engine import faults, guard
from octavo.engine.channel import ChildChannel, PeerGone
from octavo.engine.core import EngineCore
from octavo.engine.guard import Inherited
from octavo.engine.journal import Journaled, JournalWriter, Phase, create
from octavo.engine.supervisor import FAILED, NO_MEMORY
from octavo.kvcache.tiers.disk import open_tier, tier_lines
from octavo.models.files import sentence
from octavo.structure.protocol import Structures
from octavo.types import BlockPages, Drain, Executor, Fatal, Progress, Shutdown


class LoadedExecutor(Executor, Protocol):
    """What the factory returns: an executor, the configuration it settled on and what to tell the user."""

    config: EngineConfig
    report: tuple[str, ...]

    @property
    def structures(self) -> Structures | None:
        """Which structures of outputs can be had; None where they are switched off."""
        ...

    @property
    def pages(self) -> BlockPages | None:
        """None: there is nothing that could be kept elsewhere."""
        ...


ExecutorFactory = Callable[[EngineConfig, Callable[[str, float | None], None]], LoadedExecutor]

_FLUSH_SECONDS = 10.0
_IDLE_SECONDS = 1.0
"""Without work, the engine beats so often; at the first beat it recounts its blocks."""


def serve(given: Inherited, build_executor: ExecutorFactory) -> int:
    """Runs an engine for the parent at the other end, which `guard.begin` watches; returns the exit status."""
    guard.open_standard_streams()
    guard.tell_crashes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=given.fd)
    try:
        planned = faults.of_environment(given.life)
    except ConfigError as error:
        return _fatal(ChildChannel(sock), str(error))
    channel = faults.FaultyChannel(sock, planned) if planned else ChildChannel(sock)
    journal = JournalWriter(create() if given.journal is None else given.journal)
    try:
        return _Engine(channel, journal, planned).run(build_executor)
    except PeerGone:
        return 0


class _Engine:
    """One life."""

    def __init__(self, channel: ChildChannel, journal: JournalWriter, planned: tuple[faults.Fault, ...]) -> None:
        self._channel = channel
        self._journal = journal
        self._faults = planned

    def run(self, build_executor: ExecutorFactory) -> int:
        """From the configuration to the end; the exit status."""
        channel = self._channel
        config = channel.receive_config()

        def progress(what: str, fraction: float | None = None) -> None:
            self._journal.mark(Phase.LOADING)
            channel.send(Progress(what, fraction))

        try:
            loaded = build_executor(config, faults.slow_loading(progress, self._faults))
            tier = open_tier(loaded.config.kv, loaded.info, loaded.pages)
        except (ValueError, OSError, MemoryError) as error:
            return _fatal(channel, sentence(error) or type(error).__name__)
        except PeerGone:
            raise
        except Exception as error:
            _print_traceback()
            return _fatal(channel, f"the engine cannot start: {type(error).__name__}: {error}")
        executor: Executor = loaded
        report = (*loaded.report, *tier_lines(tier))
        if self._faults:
            executor = faults.FaultyExecutor(executor, self._faults)
            report = (*report, f"faults     on purpose: {len(self._faults)} of {faults.VARIABLE}")
        journaled = Journaled(executor, self._journal)
        core = EngineCore(loaded.config, journaled, tier=tier, structures=loaded.structures)
        orderly = False
        try:
            channel.send(core.ready(report))
            status = self._loop(core)
            orderly = True
            return status
        except PeerGone:
            orderly = True
            raise
        except MemoryError:
            return NO_MEMORY
        except Exception as error:
            _print_traceback()
            return _fatal(channel, f"the engine failed: {type(error).__name__}: {error}")
        finally:
            if orderly:  # otherwise who was in the step is still to be read
                self._journal.mark(Phase.IDLE)
            core.close(keep=orderly)
            executor.close()

    def _loop(self, core: EngineCore) -> int:
        channel, journal = self._channel, self._journal
        draining = False
        unchecked = False
        while True:
            idle = not core.has_work and not draining
            if idle:
                journal.mark(Phase.IDLE)
            messages = channel.poll(_IDLE_SECONDS if idle else 0.0)
            journal.mark(Phase.HOST)
            if idle:
                core.pins.expire()
            if idle and not messages and unchecked:
                core.validate()
                unchecked = False
            for message in messages:
                if isinstance(message, Shutdown):
                    return 0
                draining = draining or isinstance(message, Drain)
                core.handle(message)
            for reply in core.take_replies():
                channel.send(reply)
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
    return FAILED


def _print_traceback() -> None:
    """For the log, which may be gone or full."""
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exc()
        sys.stderr.flush()
