"""An answer's text taken apart as it comes: thoughts, content and tool calls.

Owns the two parsers of one choice. Life: `push` the text that may be sent (stop strings are found before), `finish`
once, `take` what is new after either. Null twin: a choice without this has content alone.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.server.tools.parser import Delta, ToolParser
from octavo.server.tools.reasoning import Reasoning

MakeParts = Callable[[], "AnswerParts"]


class AnswerParts:
    """The parts of one choice."""

    __slots__ = ("_out", "_over", "_reasoning", "_said", "_tools", "reasoning_tokens")

    def __init__(self, reasoning: Reasoning | None, tools: ToolParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._out = Delta()
        self._over = False
        self._said = False
        self.reasoning_tokens: int | None = None if reasoning is None else 0
        """Tokens up to the one that ended the thoughts. None: thoughts are not looked for."""

    @property
    def ended(self) -> bool:
        """The answer is complete, whatever the model would say."""
        return self._tools is not None and self._tools.ended

    @property
    def calls(self) -> bool:
        """The answer is calls, all complete; known once its text has ended."""
        return self._tools is not None and self._tools.complete

    def push(self, text: str, tokens: int) -> None:
        """The answer's text goes on. tokens: how many there are, with those of this text."""
        if self._reasoning is not None and not self._reasoning.over:
            thoughts, text = self._reasoning.push(text)
            self._out.reasoning += thoughts
            if self._reasoning.found:
                self.reasoning_tokens = tokens
        elif self._reasoning is not None:
            _, text = self._reasoning.push(text)
        self._rest(text)

    def finish(self, tokens: int) -> None:
        """The answer's text has ended."""
        if self._reasoning is not None:
            if self._reasoning.found and not self._reasoning.over:
                self.reasoning_tokens = tokens
            thoughts, text = self._reasoning.finish()
            self._out.reasoning += thoughts
            self._rest(text)
        if self._tools is not None:
            self._tools.finish()
        self._over = True

    def take(self) -> Delta:
        """What is new since this was asked last."""
        out, self._out = self._out, Delta()
        if self._tools is not None:
            said = self._tools.take()
            out.content, out.calls = said.content, said.calls
        self._said = self._said or out.content is not None or bool(out.reasoning or out.calls)
        if self._over and not self._said:
            out.content = ""
        return out

    def _rest(self, text: str) -> None:
        if self._tools is not None:
            self._tools.push(text)
        elif text:
            self._out.content = (self._out.content or "") + text
