"""Thoughts out of an answer's text: what stands between <think> and </think> at its start.

Owns what was read and not yet decided. Life: `push` text and get (thoughts, the rest), `finish` when the text has
ended. Each character changes the state on its own, so the joined pieces do not depend on the split. Thoughts begin the
answer, or the template has opened them already; a <think> further on is text like any other. White space next to the
two marks belongs to them. Off switch: `--reasoning-parser none`, the default.
"""

from __future__ import annotations

from enum import Enum, auto

OPEN = "<think>"
CLOSE = "</think>"


class _At(Enum):
    START = auto()
    THOUGHTS = auto()
    BEHIND = auto()
    """Behind the thoughts, before the first character of the rest."""
    REST = auto()


class Reasoning:
    """The thoughts of one choice."""

    __slots__ = ("_at", "_mark", "_said", "_space", "found")

    def __init__(self, opened: bool) -> None:
        """opened: the prompt ends within thoughts."""
        self._at = _At.THOUGHTS if opened else _At.START
        self._space = ""
        self._mark = ""
        self._said = False
        self.found = opened
        """There are thoughts, of however many characters."""

    @property
    def over(self) -> bool:
        """What comes from here on is the rest."""
        return self._at in (_At.BEHIND, _At.REST)

    def push(self, text: str) -> tuple[str, str]:
        """The answer's text goes on: new thoughts, and new text of the rest."""
        thoughts: list[str] = []
        for at, character in enumerate(text):
            if self._at is _At.BEHIND and not character.isspace():
                self._at = _At.REST
            if self._at is _At.START:
                self._start(character)
            elif self._at is _At.THOUGHTS:
                thoughts.append(self._think(character))
            if self._at is _At.REST:
                held, self._space, self._mark = self._space + self._mark, "", ""
                return "".join(thoughts), held + text[at + bool(held) :]
        return "".join(thoughts), ""

    def finish(self) -> tuple[str, str]:
        """The answer's text has ended: what was held back."""
        held, self._space, self._mark = self._space + self._mark, "", ""
        return (held, "") if self._at is _At.THOUGHTS else ("", held)

    def _start(self, character: str) -> None:
        if character.isspace() and not self._mark:
            self._space += character
            return
        self._mark += character
        if self._mark == OPEN:
            self._at, self.found = _At.THOUGHTS, True
            self._space = self._mark = ""
        elif not OPEN.startswith(self._mark):
            self._at = _At.REST

    def _think(self, character: str) -> str:
        """What of the thoughts is now known to be none of the mark's."""
        if character.isspace() and not self._mark:
            self._space += character if self._said else ""
            return ""
        self._mark += character
        if CLOSE.startswith(self._mark):
            if self._mark == CLOSE:
                self._at = _At.BEHIND
                self._space = self._mark = ""
            return ""
        said, self._said = self._space, True
        self._space = ""
        while self._mark and not CLOSE.startswith(self._mark):
            first, self._mark = self._mark[0], self._mark[1:]
            if first.isspace() and not self._mark:
                self._space = first
            else:
                said += first
        return said
