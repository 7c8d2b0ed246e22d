"""How far a run is, on one line of a terminal; where standard error is none, nothing until the end.

Owns the line, and the logger's lines that come between. Speed is of the tokens that the engine has generated in the
last seconds; the time left is made from the lines of this run. Off: a standard error that is no terminal.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import deque
from typing import TextIO

_WINDOW_SECONDS = 10.0
_BAR = 24


class Progress:
    """See the module."""

    def __init__(self, stream: TextIO, lines: int | None, answered: int, errors: int = 0) -> None:
        """lines: how many there are; None: not known. answered: by earlier runs; errors: of these."""
        self._stream = stream if stream.isatty() else None
        self._lines = lines
        self._before = answered
        self._began = time.monotonic()
        self._samples: deque[tuple[float, int]] = deque()
        self._shown = False
        self.done = answered
        self.errors = errors
        self.tokens = 0
        """In answers of this run."""

    def finished(self, tokens: int, error: bool) -> None:
        """One more line."""
        self.done += 1
        self.tokens += tokens
        self.errors += error

    @property
    def seen(self) -> bool:
        """Somebody reads along."""
        return self._stream is not None

    def began(self) -> None:
        """The first line is about to be answered: the time counts from here."""
        self._began = time.monotonic()

    def say(self, what: str, fraction: float | None) -> None:
        """What is done before the first line."""
        self._show(what if fraction is None else f"{what} {int(fraction * 100)}%")

    def show(self, generated: int) -> None:
        """generated: tokens that the engine has made so far; fewer than before where it was started again."""
        now = time.monotonic()
        if self._samples and generated < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, generated))
        while now - self._samples[0][0] > _WINDOW_SECONDS and len(self._samples) > 2:
            self._samples.popleft()
        self._show("  ".join(filter(None, [self._bar(), self.count(), self._speed(), self._left(now)])))

    def clear(self) -> None:
        """Takes the line away."""
        if self._stream is not None and self._shown:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._shown = False

    def summary(self) -> str:
        """All of it, in one sentence without its end."""
        seconds = time.monotonic() - self._began
        new = self.done - self._before
        errors = f", {self.errors} of them errors" if self.errors else ""
        before = f" ({self._before} of them before)" if self._before else ""
        speed = f", {self.tokens / seconds:.0f} tok/s" if new and seconds > 0 else ""
        return f"{self.count()}{before} in {duration(seconds)}{speed}{errors}"

    def _show(self, text: str) -> None:
        if self._stream is None:
            return
        width = max(20, shutil.get_terminal_size().columns - 1)
        print(f"\r\x1b[K{text[:width]}", end="", file=self._stream, flush=True)
        self._shown = True

    def _bar(self) -> str:
        if not self._lines:
            return ""
        return f"[{'#' * (_BAR * self.done // self._lines):<{_BAR}}]"

    def count(self) -> str:
        """How many lines are answered."""
        return f"{self.done} lines" if self._lines is None else f"{self.done} of {self._lines} lines"

    def _speed(self) -> str:
        (first, before), (last, now) = self._samples[0], self._samples[-1]
        return f"{(now - before) / (last - first):.0f} tok/s" if last > first else ""

    def _left(self, now: float) -> str:
        new = self.done - self._before
        if self._lines is None or not new:
            return ""
        return f"{duration((now - self._began) / new * (self._lines - self.done))} left"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03 or 2:03."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ClearingHandler(logging.StreamHandler[TextIO]):
    """Log lines beside a progress line: it is taken away first, and comes again by itself."""

    def __init__(self, stream: TextIO, progress: Progress) -> None:
        super().__init__(stream)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.clear()
        super().emit(record)
