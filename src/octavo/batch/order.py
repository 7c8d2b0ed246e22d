"""In which order results leave: as their lines stand in the input, or as they finish.

Life of a line: `begin` when it is read, `finish` with its result, which gives all that may be written now. In the
input's order finished results wait behind an older line; `held` says how many bytes, so that reading can stop. The two
are each other's off switch (`--order finish`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from octavo.batch.answers import Result


class Order(ABC):
    """See the module."""

    held = 0
    """Bytes of finished results that may not be written yet."""

    @abstractmethod
    def begin(self, line: int) -> None:
        """A line is being answered; lines begin in the input's order."""

    @abstractmethod
    def finish(self, result: Result) -> list[Result]:
        """A line has its result; what may be written now, in this order."""


class AsFinished(Order):
    """Nothing waits."""

    def begin(self, line: int) -> None:
        return None

    def finish(self, result: Result) -> list[Result]:
        return [result]


class AsRead(Order):
    """The input's order."""

    def __init__(self) -> None:
        self._lines: deque[int] = deque()
        self._done: dict[int, Result] = {}

    def begin(self, line: int) -> None:
        self._lines.append(line)

    def finish(self, result: Result) -> list[Result]:
        self._done[result.line] = result
        self.held += len(result.text)
        ready: list[Result] = []
        while self._lines and (found := self._done.pop(self._lines[0], None)) is not None:
            self._lines.popleft()
            self.held -= len(found.text)
            ready.append(found)
        return ready


ORDERS: dict[str, type[Order]] = {"input": AsRead, "finish": AsFinished}
