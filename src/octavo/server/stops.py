"""Stop text: found wherever it lies in the stream of characters, and never sent.

Owns what is held back. A character is sent once it can no longer be part of a stop string, so the cut does not
depend on how the text was divided into tokens: the stop string that is complete first wins, and of those that end at
the same character the longest. Off when a request names no stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """The stop strings of one choice."""

    __slots__ = ("_held", "_include", "_longest", "_stops")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        assert all(stops), "stop strings are not empty"
        self._stops = tuple(stops)
        self._include = include
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Adds decoded text; returns what may be sent, and whether a stop string is now complete."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = self._find(text)
        if found is not None:
            start, end = found
            self._held = ""
            return text[: end if self._include else start], True
        keep = self._prefix_length(text)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """The text has ended without a match: what was held back."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, int] | None:
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                end = start + len(stop)
                if best is None or (end, start) < (best[1], best[0]):
                    best = (start, end)
        return best

    def _prefix_length(self, text: str) -> int:
        """Length of the longest tail that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
