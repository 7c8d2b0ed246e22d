"""Faults on purpose: what tests and `octavo bench chaos` make an engine do, the same each time.

Owns the grammar of the variable OCTAVO_FAULTS: faults with semicolons between, each a kind, `@`, and conditions with
commas between, such as `segv@step=40,life=0;stuck@marker=77.78`. All conditions must hold. Without the variable,
nothing of this module is in the engine's way.

Kinds: kill (SIGKILL, as from outside, which is nobody's fault), segv, abort (signals), error (an exception in the
step), memory (an allocation that fails), stuck (the step never ends), slow (a step takes `seconds` more, or with `load`
each part of loading does), cut (half of message `message` is sent, then the channel is closed).
Conditions: step=N (the N-th of this life, from 1), life=N (the N-th engine, from 0), marker=ID.ID (a request whose
prompt has these tokens is in the step), after=N (and has N generated tokens at least), op=N (stuck: at this op of the
program), seconds=S, load=1, message=N.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from octavo.config import ConfigError, environment
from octavo.engine.channel import ChildChannel, PeerGone, encode_frame
from octavo.types import EngineMessage, Executor, NewSlot, StepHandle, StepPlan

VARIABLE = "OCTAVO_FAULTS"
KINDS = ("kill", "segv", "abort", "error", "memory", "stuck", "slow", "cut")
_NUMBERS = ("step", "life", "after", "op", "load", "message")


@dataclass(frozen=True)
class Fault:
    """One fault and when it happens."""

    kind: str
    step: int | None = None
    life: int | None = None
    marker: tuple[int, ...] = ()
    after: int = 0
    op: int | None = None
    seconds: float = 1.0
    load: int = 0
    message: int | None = None


def parse(text: str) -> tuple[Fault, ...]:
    """Faults of the variable's text; ConfigError names what it is not."""
    return tuple(_parse_one(part.strip()) for part in text.split(";") if part.strip())


def _parse_one(text: str) -> Fault:
    kind, _, conditions = text.partition("@")
    if kind not in KINDS:
        raise ConfigError(f"{VARIABLE}: {kind!r} is no fault; use one of {', '.join(KINDS)}")
    values: dict[str, Any] = {}
    for condition in filter(None, conditions.split(",")):
        name, _, value = condition.partition("=")
        try:
            if name in _NUMBERS:
                values[name] = int(value)
            elif name == "seconds":
                values[name] = float(value)
            elif name == "marker":
                values[name] = tuple(map(int, value.split(".")))
            else:
                raise ValueError
        except ValueError:
            raise ConfigError(f"{VARIABLE}: {condition!r} is no condition; step=40 would work") from None
    return Fault(kind, **values)


def of_environment(life: int) -> tuple[Fault, ...]:
    """What this life of the engine is to suffer."""
    text = environment(VARIABLE)
    return () if text is None else tuple(fault for fault in parse(text) if fault.life in (None, life))


class FaultyExecutor:
    """An executor that fails as it is told; implements `types.Executor`."""

    def __init__(self, executor: Executor, faults: tuple[Fault, ...]) -> None:
        self._executor = executor
        self._faults = faults
        self._slots: dict[int, NewSlot] = {}
        self._steps = 0
        self.info = executor.info
        self.num_blocks = executor.num_blocks

    def submit(self, plan: StepPlan) -> StepHandle:
        self._steps += 1
        for slot in plan.released:
            self._slots.pop(slot, None)
        for new in plan.new:
            self._slots[new.slot] = new
        for fault in self._faults:
            if self._due(fault, plan):
                self._bring_about(fault)
        return self._executor.submit(plan)

    def close(self) -> None:
        self._executor.close()

    def _due(self, fault: Fault, plan: StepPlan) -> bool:
        if fault.kind == "cut" or fault.load or fault.step not in (None, self._steps):
            return False
        return not fault.marker or any(
            self._marked(fault, self._slots[work.slot], work.start + work.count) for work in plan.work
        )

    @staticmethod
    def _marked(fault: Fault, new: NewSlot, end: int) -> bool:
        prompt, marker = new.tokens[: new.num_prompt], list(fault.marker)
        if end < new.num_prompt + fault.after:
            return False
        return any(prompt[i : i + len(marker)] == marker for i in range(len(prompt) - len(marker) + 1))

    def _bring_about(self, fault: Fault) -> None:
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "segv":
            ctypes.string_at(0)
        elif fault.kind == "abort":
            os.abort()
        elif fault.kind == "error":
            raise RuntimeError("a fault on purpose")
        elif fault.kind == "memory":
            raise MemoryError
        elif fault.kind == "slow":
            time.sleep(fault.seconds)
        elif fault.op is not None:
            self._stick_at(fault.op)
        else:
            _stick()

    def _stick_at(self, op: int) -> None:
        """The forward pass of this step comes as far as `op`. Known of the native back end alone."""
        forward: Any = getattr(self._executor, "forward", None)
        program: Any = getattr(forward, "program", None)
        if program is None:
            raise ConfigError(f"{VARIABLE}: op={op} needs the native back end; leave op out")

        def replay(first: int, last: int, batch: Any) -> NoReturn:
            for index in range(first, min(op, last)):
                program.run_op(index, batch)
            _stick()

        forward._replay = replay


def _stick() -> NoReturn:
    while True:
        time.sleep(3600)


class FaultyChannel(ChildChannel):
    """A channel that ends in the middle of a message."""

    def __init__(self, sock: socket.socket, faults: tuple[Fault, ...]) -> None:
        super().__init__(sock)
        self._at = {fault.message for fault in faults if fault.kind == "cut"}
        self._sent = 0

    def send(self, message: EngineMessage) -> None:
        self._sent += 1
        if self._sent not in self._at:
            super().send(message)
            return
        self.flush(1.0)
        frame = encode_frame(message)
        self._socket.send(frame[: len(frame) // 2])
        self._socket.shutdown(socket.SHUT_RDWR)
        raise PeerGone("a fault on purpose")


def slow_loading(
    progress: Callable[[str, float | None], None], faults: tuple[Fault, ...]
) -> Callable[[str, float | None], None]:
    """A report of progress that takes as long as a slow disk makes it."""
    seconds = sum(fault.seconds for fault in faults if fault.load)

    def slow(what: str, fraction: float | None = None) -> None:
        time.sleep(seconds)
        progress(what, fraction)

    return slow if seconds else progress
