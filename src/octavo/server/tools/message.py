"""Thoughts, content and calls as the API has them: the fields of a delta, and the message that the deltas join to.

Content is null until there is some; an answer of nothing at all has the empty string.
"""

from __future__ import annotations

from typing import Any

from octavo.server.tools.parser import CallDelta, Delta


def delta_fields(delta: Delta) -> dict[str, Any]:
    """A chunk's delta."""
    fields: dict[str, Any] = {}
    if delta.reasoning:
        fields["reasoning_content"] = delta.reasoning
    if delta.content is not None:
        fields["content"] = delta.content
    if delta.calls:
        fields["tool_calls"] = [_call_delta(call) for call in delta.calls]
    return fields


def _call_delta(call: CallDelta) -> dict[str, Any]:
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


class MessageParts:
    """What is collected of one choice for a whole body: the join of its deltas."""

    __slots__ = ("_calls", "_content", "_reasoning")

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[tuple[CallDelta, list[str]]] = []

    def add(self, delta: Delta) -> None:
        """The next one."""
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        if delta.content is not None:
            self._content.append(delta.content)
        for call in delta.calls:
            if call.id is not None:
                self._calls.append((call, []))
            self._calls[call.index][1].append(call.arguments)

    def fields(self) -> dict[str, Any]:
        """Of the message."""
        fields: dict[str, Any] = {"content": "".join(self._content) if self._content else None}
        if self._reasoning:
            fields["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            fields["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(arguments)},
                }
                for call, arguments in self._calls
            ]
        return fields
