"""An engine's side of its mask process: which structures can be had, and what may follow where.

Owns the process (worker.py), the memory in which masks lie, and what is needed to start it anew: a process that dies,
or says nothing for too long, is replaced, and all states are opened again from their tokens; the one that it was at
work on ends with an error. The process starts with the first structure, so an engine that sees none has none.

Life: `compile` and `compiled` for requests that enter; `open`, `want`, `position`, `close` for those that run. Nothing
here waits but `wait`, and `position` as long as it is told. `close()` ends the process.
Off switch: `structured_outputs` makes `NoMasker`.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.config import child_environment
from octavo.structure.messages import (
    HEADER_WORDS,
    Close,
    Compile,
    Compiled,
    Open,
    Position,
    Reply,
    Request,
    Setup,
    Sync,
)
from octavo.types import Structure

log = logging.getLogger("octavo.engine")

U32 = npt.NDArray[np.uint32]
_DEATHS = 3
"""In a row, without a reply between them, whose cause is not known: then nothing can be had."""
_START_SECONDS = 60.0
_TOO_MUCH = "the structure takes too much time or memory at this point; make it smaller, or its bounds lower"
_BROKEN = "the process that computes masks of structured outputs does not run"


@dataclass(frozen=True)
class MaskerSettings:
    """What a mask process is made with."""

    model: str
    """Path of the model."""
    vocab: int
    eos: tuple[int, ...]
    rows: int
    """States at once."""
    ahead: int = 0
    """Forced tokens that a state runs ahead at most; 0: none."""
    seconds: float = 1.0
    """Processor time of one compilation, and of one mask."""
    memory: int = 1 << 30
    """Bytes beyond what the process holds at its start."""


class MaskState:
    """One request's place, as the engine knows it."""

    __slots__ = ("_masker", "ahead", "error", "history", "number", "position", "serial", "structure", "wanted")

    def __init__(self, masker: Masker, number: int, structure: Structure, ahead: bool) -> None:
        self._masker = masker
        self.ahead = ahead
        self.number = number
        self.structure = structure
        self.wanted: list[int] = []
        """Output tokens that it was last told of."""
        self.history: list[int] = []
        """Output tokens that the newest position is behind, forced ones included; its tokens are in the process."""
        self.position: Position | None = None
        """None: to come."""
        self.serial = 0
        self.error: str | None = None

    def want(self, output: list[int]) -> None:
        """Asks for the position behind these output tokens, unless it is known or asked for."""
        self._masker.want(self, output)

    def at(self, output: list[int], seconds: float) -> Position | None:
        """The position at or beyond `output` (beyond it by forced tokens), waited for; None where it is late."""
        self.want(output)
        return self._masker.wait_for(self, seconds)

    @property
    def mask(self) -> U32:
        """Of `history`; valid until the state is asked for another position."""
        return self._masker.rows[self.number]

    def close(self) -> None:
        self._masker.forget(self)


class Masker:
    """See the module. One thread calls it."""

    def __init__(self, settings: MaskerSettings) -> None:
        self._settings = settings
        words = -(-settings.vocab // 32)
        self._size = 4 * (HEADER_WORDS + settings.rows * words)
        self._memory = os.memfd_create("octavo-masks")
        os.ftruncate(self._memory, self._size)
        flat = np.frombuffer(mmap.mmap(self._memory, self._size), np.uint32)
        self._header = flat[:HEADER_WORDS]
        self.rows = flat[HEADER_WORDS:].reshape(settings.rows, words)
        self._states: dict[int, MaskState] = {}
        self._asked: set[int] = set()
        """States whose position is to come."""
        self._tickets: dict[int, Structure] = {}
        """Asked, and not answered."""
        self._answers: list[tuple[int, str | None]] = []
        self._next_ticket = 0
        self._next_serial = 0
        self._worker: _Process | None = None
        self._deaths = 0
        self._broken = False
        self._heard = 0.0
        """When the process last said something, or was asked while it had nothing to do."""
        self._closed = False

    # --- structures -----------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return bool(self._tickets or self._answers)

    def compile(self, structure: Structure) -> int:
        self._notice()
        ticket = self._next_ticket = self._next_ticket + 1
        if self._broken:
            self._answers.append((ticket, _BROKEN))
            return ticket
        self._tickets[ticket] = structure
        self._send(Compile(ticket, structure))
        self._flush()
        return ticket

    def compiled(self) -> list[tuple[int, str | None]]:
        self._pump(0.0)
        answers, self._answers = self._answers, []
        return answers

    def wait(self, seconds: float) -> None:
        if not self._answers:
            self._flush()
            self._pump(seconds)

    # --- states ---------------------------------------------------------------------------------

    def open(self, number: int, structure: Structure, ahead: bool) -> MaskState:
        """A state of no tokens; `number`, below the settings' rows, is nobody else's. ahead: it may run ahead."""
        state = self._states[number] = MaskState(self, number, structure, ahead)
        if self._broken:
            state.error = _BROKEN
        self._send(Open(number, structure))
        return state

    def want(self, state: MaskState, output: list[int]) -> None:
        if state.error is not None:
            return
        # Until the answer is here, `history` is `wanted`: tokens that the process runs ahead are not known.
        if state.serial and len(state.wanted) <= len(output) and state.history[: len(output)] == output:
            return
        if state.serial and output == state.wanted:  # the grammar forbids some of it
            return
        keep = _common(state.history, output)
        state.wanted = list(output)
        self._sync(state, keep)

    def wait_for(self, state: MaskState, seconds: float) -> Position | None:
        deadline = time.monotonic() + seconds
        self._flush()
        while state.position is None and state.error is None:
            left = deadline - time.monotonic()
            if left <= 0 and not self._pump(0.0):
                return None
            self._pump(max(0.0, left))
        return state.position

    def forget(self, state: MaskState) -> None:
        if self._states.get(state.number) is state:
            del self._states[state.number]
            self._asked.discard(state.number)
            self._send(Close(state.number))

    def flush(self) -> None:
        """Sends what was asked for."""
        self._flush()

    def close(self) -> None:
        """Ends the process; harmless when called twice."""
        if not self._closed:
            self._closed = True
            self._end()
            os.close(self._memory)

    def _sync(self, state: MaskState, keep: int) -> None:
        self._notice()
        self._asked.add(state.number)
        state.serial = self._next_serial = self._next_serial + 1
        state.position = None
        state.history = list(state.wanted)
        self._send(
            Sync(state.number, state.serial, keep, state.wanted[keep:], self._settings.ahead if state.ahead else 0)
        )

    # --- the process ----------------------------------------------------------------------------

    def _send(self, request: Request) -> None:
        if self._broken or self._closed:
            return
        if self._worker is None:
            if isinstance(request, Close):
                return
            self._start()
            if isinstance(request, Compile | Open | Sync):
                return  # `_start` has told it all that is known
        assert self._worker is not None
        self._worker.queue.append(request)

    def _start(self) -> None:
        settings = self._settings
        self._header[:2] = 0
        setup = Setup(
            settings.model,
            settings.vocab,
            list(settings.eos),
            settings.rows,
            settings.seconds,
            settings.memory,
        )
        worker = self._worker = _Process(self._memory, setup)
        self._heard = time.monotonic()
        worker.queue += [Compile(ticket, structure) for ticket, structure in self._tickets.items()]
        for state in self._states.values():
            if state.error is None:
                worker.queue.append(Open(state.number, state.structure))
                self._sync(state, 0)

    def _flush(self) -> None:
        if self._worker is not None and not self._worker.flush():
            self._lost()

    def _pump(self, seconds: float) -> bool:
        """Takes replies in, waiting for the first so long at most; whether there were any."""
        worker = self._worker
        if worker is None:
            return False
        replies = worker.read(seconds)
        if replies is None:
            self._lost()
            return True
        for reply in replies:
            self._take(reply)
        now = time.monotonic()
        if replies:
            self._heard = now
            self._deaths = 0
            worker.started = True
        elif self._working and now - self._heard > (4 * self._settings.seconds if worker.started else _START_SECONDS):
            self._lost()
            return True
        return bool(replies)

    @property
    def _working(self) -> bool:
        """The process has something to do."""
        return bool(self._tickets or self._asked)

    def _notice(self) -> None:
        """It is about to get something to do."""
        if not self._working:
            self._heard = time.monotonic()

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Compiled):
            if self._tickets.pop(reply.ticket, None) is not None:
                self._answers.append((reply.ticket, reply.error))
            return
        state = self._states.get(reply.state)
        if state is None or state.serial != reply.serial:
            return
        self._asked.discard(reply.state)
        if reply.error is not None:
            state.error = f"the structure is too complex at this point: {reply.error}"
            return
        state.history = [*state.wanted[: reply.taken], *reply.forced]
        state.position = reply

    def _lost(self) -> None:
        """The process died, or hangs: who was being worked on has an error, the others begin anew."""
        guilty, ticket = int(self._header[0]) - 1, int(self._header[1]) - 1
        self._end()
        state = self._states.get(guilty)
        if state is not None:
            state.error = _TOO_MUCH
            self._asked.discard(guilty)
        elif self._tickets.pop(ticket, None) is not None:
            self._answers.append((ticket, _TOO_MUCH.removeprefix("the structure ")))
        else:
            self._deaths += 1
        log.warning("the process that computes masks of structured outputs was replaced")
        if self._deaths >= _DEATHS:
            self._give_up()
        elif self._working:
            self._start()
            self._flush()

    def _give_up(self) -> None:
        self._broken = True
        self._asked.clear()
        for state in self._states.values():
            state.error = state.error or _BROKEN
        self._answers += [(ticket, _BROKEN) for ticket in self._tickets]
        self._tickets.clear()

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    """Length of the common beginning."""
    length = min(len(one), len(two))
    if list(one[:length]) == list(two[:length]):
        return length
    return next(i for i in range(length) if one[i] != two[i])


class _Process:
    """The mask process, and frames to and from it; nothing blocks but `read`, as long as it is told."""

    def __init__(self, memory: int, setup: Setup) -> None:
        self.queue: list[Request] = []
        self.started = False
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "octavo.structure.worker", str(theirs.fileno()), str(memory)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
                env=child_environment(),
            )
        ours.setblocking(False)
        self._sock = ours
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(list[Reply])
        self._received = bytearray()
        self._waiting = bytearray(_frame(msgspec.msgpack.encode(setup)))

    def flush(self) -> bool:
        """Sends what the socket takes; False where the process is gone."""
        if self.queue:
            self._waiting += _frame(msgspec.msgpack.encode(self.queue))
            self.queue.clear()
        try:
            while self._waiting:
                del self._waiting[: self._sock.send(self._waiting)]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def read(self, seconds: float) -> list[Reply] | None:
        """Replies, waited for so long at most; None where the process is gone."""
        if not self.flush():
            return None
        self._poll.modify(self._sock, select.POLLIN | (select.POLLOUT if self._waiting else 0))
        if not self._poll.poll(1000 * seconds):
            return []
        try:
            while part := self._sock.recv(1 << 16):
                self._received += part
            return None
        except BlockingIOError:
            return self._frames()
        except OSError:
            return None

    def _frames(self) -> list[Reply]:
        replies: list[Reply] = []
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "little")
            if len(self._received) < end:
                break
            replies += self._decoder.decode(self._received[4:end])
            del self._received[:end]
        return replies

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._sock.close()


def _frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "little") + content
