"""Steps that are held in flight: an executor whose results come when a test lets them."""

from __future__ import annotations

import threading

from octavo.types import Executor, ModelInfo, StepHandle, StepPlan, StepResult

SECONDS = 30.0


class Held:
    """Stands before an executor. While `hold` is set, whoever asks for a result waits."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._change = threading.Condition()
        self._waiting = False
        self._hold = False
        self.asked = 0
        """Results that were asked for."""
        self.info: ModelInfo = inner.info
        self.num_blocks = inner.num_blocks

    def submit(self, plan: StepPlan) -> StepHandle:
        return _Handle(self, self._inner.submit(plan))

    def close(self) -> None:
        self._inner.close()

    def hold(self) -> None:
        """From now on results wait."""
        self._hold = True

    def wait_held(self) -> None:
        """Until a step is in flight and its result is waited for."""
        with self._change:
            assert self._change.wait_for(lambda: self._waiting, SECONDS), "no step was submitted"

    def release(self) -> None:
        with self._change:
            self._hold = self._waiting = False
            self._change.notify_all()

    def pass_through(self, handle: StepHandle) -> StepResult:
        with self._change:
            self.asked += 1
            self._waiting = self._hold
            self._change.notify_all()
            assert self._change.wait_for(lambda: not self._hold, SECONDS), "the step was never released"
        return handle.result()


class _Handle:
    def __init__(self, held: Held, inner: StepHandle) -> None:
        self._held = held
        self._inner = inner

    def result(self) -> StepResult:
        return self._held.pass_through(self._inner)
