"""Calls that are forced: the grammar (llguidance's form of Lark) that an answer is held to.

Owns nothing. Required and named calls: the answer is calls in the model's own form (behind thoughts, where thoughts
are looked for), at most `MAX_CALLS`. Strict tools that need not be called: free text, and calls that follow their
schemas. The schema of arguments is the tool's, without further properties unless it says so itself; of a tool with
`strict` false, any object. Marks that are control tokens are named by their id, for text cannot write them.
Off switch: tool_choice "auto" and tools without `strict`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from octavo.server.tools.definitions import FunctionDefinition, ToolPlan
from octavo.server.tools.forms import ARGS, Form
from octavo.server.tools.reasoning import CLOSE, OPEN
from octavo.types import Structure

MAX_CALLS = 16
"""In one answer that is forced to call."""

_JSON_FORM = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_TEXT = "TEXT: /(.|\\n)*/"
_LINE = r"[ \t\n]*[^ \t\n{\[][^\n]*"
"""One that cannot begin a call."""

ControlId = Callable[[str], int | None]
"""A mark's text -> its id, where it is a control token."""


def structure_of(plan: ToolPlan, form: Form, thoughts: bool, opened: bool, control: ControlId) -> Structure | None:
    """What the whole answer looks like; None where it is free. thoughts, opened: as in `Talk`."""
    if not plan.required and not plan.strict:
        return None
    grammar = _Grammar(plan, form, control)
    if plan.required:
        grammar.force(thoughts, opened)
    else:
        grammar.allow(thoughts, opened)
    return Structure(kind="lark", text=grammar.text())


class _Grammar:
    """Rules as they are made."""

    def __init__(self, plan: ToolPlan, form: Form, control: ControlId) -> None:
        self._plan = plan
        self._form = form
        self._control = control
        self._rules: list[str] = []
        bodies = []
        for number, tool in enumerate(plan.tools):
            head = f'{{"name": {json.dumps(tool.name)}, "{form.arguments}": '
            self._rules.append(
                f"object_{number}: {_literal(tool.name)} {self._mark(ARGS)} arguments_{number}"
                if form.apart
                else f"object_{number}: {_literal(head)} arguments_{number} {_literal('}')}"
            )
            self._rules.append(f"arguments_{number}: %json {json.dumps(_schema(tool))}")
            bodies.append(f"object_{number}")
        self._rules.append(f"object: {' | '.join(bodies)}")

    def text(self) -> str:
        return "%llguidance {}\n" + "\n".join(self._rules) + "\n"

    def force(self, thoughts: bool, opened: bool) -> None:
        """The answer is calls."""
        before = self._thoughts(opened) if thoughts else ""
        self._rules.append(f"start: {before} {self._calls(self._plan.parallel)}")

    def allow(self, thoughts: bool, opened: bool) -> None:
        """The answer is text with calls in it, or without."""
        form = self._form
        # Thoughts whose marks are ordinary text are a part of the free text, unless they have begun.
        apart = thoughts and (opened or self._control(CLOSE) is not None)
        before = self._thoughts(opened) if apart else ""
        if form.bare:
            self._rules += [
                f"start: {before} LINES? calls?",
                f"calls: {self._marked_object()} {self._calls(True)}",
                f"LINES: /({_LINE}\\n)*({_LINE})?/",
            ]
            return
        if form.apart:
            body = "object"
        elif form.named:
            body = f'" [" {_row("object", ", ")} "]"'
        else:
            body = f'"\\n" object "\\n" {self._mark(form.end)}'
        self._rules.append(f"start: {before} (head {body})* TEXT")
        self._until("head", form.begin)

    def _marked_object(self) -> str:
        return f"{self._mark(self._form.begin)} object |" if self._form.begin else ""

    def _calls(self, several: bool) -> str:
        form = self._form
        if form.apart:
            self._rules.append(f"call: {self._mark(form.begin)} object")
            return _row("call", "") if several else "call"
        if form.named:
            objects = _row("object", ", ") if several else "object"
            return f'{self._mark(form.begin)} " [" {objects} "]"'
        if form.bare:
            return _row("object", form.separator) if several else "object"
        self._rules.append(f'call: {self._mark(form.begin)} "\\n" object "\\n" {self._mark(form.end)}')
        return _row("call", form.separator) if several else "call"

    def _thoughts(self, opened: bool) -> str:
        """Thoughts at the start; they may be left out where the template has not begun them."""
        self._rules.append(r"GAP: /\n{0,2}/")
        self._until("thoughts", CLOSE)
        return "thoughts GAP" if opened else f"({self._mark(OPEN)} thoughts GAP)?"

    def _until(self, rule: str, mark: str) -> None:
        """Text up to a mark, the mark included."""
        if _TEXT not in self._rules:
            self._rules.append(_TEXT)
        ident = self._control(mark)
        self._rules.append(f"{rule}[lazy]: TEXT {_literal(mark)}" if ident is None else f"{rule}: TEXT <[{ident}]>")

    def _mark(self, text: str) -> str:
        ident = self._control(text)
        return _literal(text) if ident is None else f"<[{ident}]>"


def _row(rule: str, separator: str) -> str:
    between = _literal(separator) if separator else ""
    return f"{rule} ({between} {rule}){{0,{MAX_CALLS - 1}}}"


def _literal(text: str) -> str:
    return json.dumps(text)


def _schema(tool: FunctionDefinition) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    if tool.strict is not False:
        schema |= tool.parameters or {"properties": {}}
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return schema | {"x-guidance": _JSON_FORM}
