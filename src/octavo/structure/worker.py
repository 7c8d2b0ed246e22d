"""The mask process: `python -m octavo.structure.worker SOCKET MEMORY`, started by masker.py with two descriptors.

Owns the tokeniser in llguidance's form, compiled grammars and all states. A grammar is a program by a stranger. It is
tried out first in a child that is forked for it, is held to processor time and memory, compiles it and walks a few
tokens; only what comes through is compiled here. Whatever a grammar still does later, the engine sees in the memory's
first word whose state was being worked on, ends this process, and opens all other states in a new one.

Life: Setup in, then requests in and replies out, in order, until the socket ends. Off switch: `structured_outputs`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from octavo.structure.grammar import compile_structure
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
from octavo.structure.states import State, TooComplex
from octavo.types import Structure

if TYPE_CHECKING:
    from llguidance import LLMatcher

_KEPT = 64
"""Compiled grammars that are kept for later requests."""
_TRIALS = 2
"""Children at once."""
_WALK = 8
"""Tokens of a trial."""


class Worker:
    """See the module."""

    def __init__(self, setup: Setup, sock: socket.socket, memory: mmap.mmap) -> None:
        self._sock = sock
        words = -(-setup.vocab // 32)
        flat = np.frombuffer(memory, np.uint32)
        self._current, self._compiling = flat[:1], flat[1:2]
        self._rows = flat[HEADER_WORDS : HEADER_WORDS + setup.rows * words].reshape(setup.rows, words)
        self._ends = _bits(setup.eos, words)
        self._setup = setup
        self._tokenizer: Any = None
        self._no_tokenizer = ""
        self._kept: OrderedDict[Structure, LLMatcher] = OrderedDict()
        self._states: dict[int, State] = {}
        self._trials: dict[int, _Trial] = {}
        """By descriptor."""
        self._queue: deque[Compile] = deque()
        try:
            self._tokenizer = _tokenizer(setup)
        except Exception as error:  # whatever a library says of a strange tokeniser, the other requests can be served
            self._no_tokenizer = f"the model's tokeniser cannot be used for structured outputs: {error}"
        _limit_memory(setup.memory)

    def run(self) -> None:
        """Until the socket ends."""
        decoder = msgspec.msgpack.Decoder(list[Request])
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while True:
            for descriptor in self._trials:
                poll.register(descriptor, select.POLLIN)
            wait = min((trial.left for trial in self._trials.values()), default=None)
            ready = [descriptor for descriptor, _ in poll.poll(None if wait is None else 1000 * wait + 1)]
            for descriptor, trial in list(self._trials.items()):
                if descriptor in ready or trial.left <= 0:
                    poll.unregister(descriptor)
                    del self._trials[descriptor]
                    self._reply([self._tried(trial)])
            if self._sock.fileno() in ready:
                frame = read_frame(self._sock)
                if frame is None:
                    return
                self._answer(decoder.decode(frame))
            while self._queue and len(self._trials) < _TRIALS:
                self._try(self._queue.popleft())

    def _answer(self, requests: Sequence[Request]) -> None:
        syncs = []
        for request in requests:
            if isinstance(request, Open):
                self._states.pop(request.state, None)
                row = self._rows[request.state]
                self._current[0] = request.state + 1
                self._states[request.state] = State(self._matcher(request.structure), row, self._ends)
                self._current[0] = 0
            elif isinstance(request, Close):
                self._states.pop(request.state, None)
            elif isinstance(request, Compile):
                self._queue.append(request)
            else:
                syncs.append(request)
        for sync in syncs:
            with _alarm(self._setup.seconds):
                position = self._position(sync)
            self._reply([position])

    def _position(self, sync: Sync) -> Position:
        state = self._states[sync.state]
        self._current[0] = sync.state + 1
        began = time.perf_counter()
        forced: list[int] = []
        ended, error = False, None
        taken = 0
        try:
            state.sync(sync.keep, sync.tokens)
            taken = len(state.tokens)
            forced, ended = state.read(sync.ahead if taken == sync.keep + len(sync.tokens) else 0)
        except TooComplex as problem:
            error = str(problem)
        self._current[0] = 0
        return Position(sync.state, sync.serial, taken, forced, ended, error, time.perf_counter() - began)

    def _matcher(self, structure: Structure) -> LLMatcher:
        matcher = self._kept.pop(structure, None) or compile_structure(self._tokenizer, structure)
        self._kept[structure] = matcher
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return matcher

    def _reply(self, replies: list[Reply]) -> None:
        frame = msgspec.msgpack.encode(replies)
        self._sock.sendall(len(frame).to_bytes(4, "little") + frame)

    # --- trials ---------------------------------------------------------------------------------

    def _try(self, request: Compile) -> None:
        if self._no_tokenizer or request.structure in self._kept:
            self._reply([Compiled(request.ticket, self._no_tokenizer or None)])
            return
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self._sock.close()
                os.close(reader)
                os.write(writer, _trial(self._tokenizer, request.structure, self._setup))
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        self._trials[reader] = _Trial(request, child, reader, time.monotonic() + 1.75 * self._setup.seconds)

    def _tried(self, trial: _Trial) -> Compiled:
        said = trial.end()
        if said is None:
            return Compiled(trial.request.ticket, _TOO_MUCH)
        error = said.decode("utf-8", "replace")
        if not error:
            self._compiling[0] = trial.request.ticket + 1
            try:
                with _alarm(2 * self._setup.seconds):
                    self._matcher(trial.request.structure)
            except ValueError as problem:
                error = str(problem)
            self._compiling[0] = 0
        return Compiled(trial.request.ticket, error or None)


_TOO_MUCH = "it takes too much time or memory; make it smaller, or its bounds lower"


class _Trial:
    """A child that tries a grammar out."""

    def __init__(self, request: Compile, child: int, reader: int, deadline: float) -> None:
        self.request = request
        self._child = child
        self._reader = reader
        self._deadline = deadline

    @property
    def left(self) -> float:
        """Seconds that it still has."""
        return max(0.0, self._deadline - time.monotonic())

    def end(self) -> bytes | None:
        """What it said (nothing: no error), or None where it died or did not come to an end."""
        if self.left <= 0:
            os.kill(self._child, signal.SIGKILL)
        said = b""
        while part := os.read(self._reader, 4096):
            said += part
        os.close(self._reader)
        _, status = os.waitpid(self._child, 0)
        return said if os.waitstatus_to_exitcode(status) == 0 else None


def _trial(tokenizer: Any, structure: Structure, setup: Setup) -> bytes:
    """In the child: what is wrong with the structure, or nothing."""
    seconds = int(setup.seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.setitimer(signal.ITIMER_PROF, setup.seconds)  # SIGPROF ends the process
    _limit_memory(setup.memory // 2)
    os.nice(5)
    words = -(-setup.vocab // 32)
    row, ends = np.zeros(words, np.uint32), _bits(setup.eos, words)
    try:
        state = State(compile_structure(tokenizer, structure), row, ends)
        choose = np.random.default_rng(0)
        for at in range(_WALK):
            _, ended = state.read(_WALK)
            allowed = np.flatnonzero(np.unpackbits((row & ~ends).view(np.uint8), bitorder="little"))
            if not at and not row.any():
                return b"no output could satisfy it"
            if ended or not len(allowed):
                break
            state.sync(len(state.tokens), [int(choose.choice(allowed))])
    except ValueError as error:
        return str(error).encode() or b"it is not valid"
    except Exception as error:  # the converter of grammars has its own kinds
        return (" ".join(str(error).split())[:240] or type(error).__name__).encode()
    return b""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """SIGPROF ends the process where the block takes more processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


# --- the process ----------------------------------------------------------------------------------


def _bits(ids: Sequence[int], words: int) -> Any:
    bits = np.zeros(words * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def _tokenizer(setup: Setup) -> Any:
    from llguidance import LLTokenizer

    from octavo.models.tokenizer import load_tokenizer

    if not setup.eos:
        raise ValueError("it has no token that ends an output")
    content = load_tokenizer(setup.model).to_json()
    return LLTokenizer(content, n_vocab=setup.vocab, eos_token=list(setup.eos))


def _limit_memory(extra: int) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = now + extra if hard == resource.RLIM_INFINITY else min(now + extra, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_frame(sock: socket.socket) -> bytes | None:
    """Waits for one frame; None where the other end is gone."""
    head = _read(sock, 4)
    return None if head is None else _read(sock, int.from_bytes(head, "little"))


def _read(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = sock.recv(size - len(parts))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def main() -> None:
    """See the module."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is the engine's to handle
    sock = socket.socket(fileno=int(sys.argv[1]))
    memory = mmap.mmap(int(sys.argv[2]), 0)
    frame = read_frame(sock)
    if frame is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionError):  # the engine is gone, and all states with it
        Worker(msgspec.msgpack.decode(frame, type=Setup), sock, memory).run()


if __name__ == "__main__":
    main()
