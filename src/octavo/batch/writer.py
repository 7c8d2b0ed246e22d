"""The thread that writes results, so that a slow disk or a pipe that nobody reads holds up no step of the engine.

Life: `put` whole lines -> the thread appends all that waits in one go, and brings it to disk once a second -> `finish`
waits until all is written. `pending` says how much waits, so that reading the input can stop. A failure is told once,
in the event loop, and nothing is written after it. There is no off switch.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

from octavo.batch.output import Output, OutputFailed

SYNC_SECONDS = 1.0


class Writer:
    """See the module. Belongs to the running event loop."""

    def __init__(
        self, output: Output, on_written: Callable[[], None], on_failure: Callable[[OutputFailed], None]
    ) -> None:
        self._output = output
        self._on_written = on_written
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._ready = threading.Condition()
        self._waiting: list[bytes] = []
        self._ending = False
        self.pending = 0
        """Bytes that are not written yet."""
        self._thread = threading.Thread(target=self._run, name="octavo-output", daemon=True)
        self._thread.start()

    def put(self, text: bytes) -> None:
        """Whole lines to append."""
        with self._ready:
            self._waiting.append(text)
            self.pending += len(text)
            self._ready.notify()

    async def finish(self, seconds: float | None) -> bool:
        """Waits until all is written and on disk; False where that took longer than `seconds`."""
        with self._ready:
            self._ending = True
            self._ready.notify()
        began = time.monotonic()
        while self._thread.is_alive():
            if seconds is not None and time.monotonic() - began > seconds:
                return False
            await asyncio.sleep(0.005)
        return True

    def _run(self) -> None:
        try:
            self._write()
        except OutputFailed as error:
            self._tell(partial(self._on_failure, error))

    def _write(self) -> None:
        synced = time.monotonic()
        dirty = False
        while True:
            with self._ready:
                due = max(0.0, synced + SYNC_SECONDS - time.monotonic()) if dirty else None
                self._ready.wait_for(lambda: bool(self._waiting) or self._ending, due)
                texts, self._waiting = self._waiting, []
                ending = self._ending
            if texts:
                text = b"".join(texts)
                self._output.append(text)
                dirty = True
                with self._ready:
                    self.pending -= len(text)
                self._tell(self._on_written)
            if dirty and (ending or time.monotonic() - synced >= SYNC_SECONDS):
                self._output.sync()
                synced, dirty = time.monotonic(), False
            if ending and not texts:
                return

    def _tell(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(what)
