"""The forms in which models write tool calls, and which one a chat template teaches.

A form is a value, not code: one parser (parser.py) reads them all. `hermes` is Qwen's and Hermes's
<tool_call>{"name": ..., "arguments": ...}</tool_call>; `llama3` a line that is {"name": ..., "parameters": ...}, or
anything such behind <|python_tag|>; `mistral` [TOOL_CALLS] before a list of objects or before NAME[ARGS]{...};
`json` a line that is such an object, or a list of them.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Form:
    """How calls stand in an answer's text."""

    name: str
    begin: str = ""
    """Text before a call (or a list of calls); empty: none is needed."""
    end: str = ""
    """Text behind it."""
    bare: bool = False
    """A line that begins with an object, or a list of objects, is a call where its name is a tool's."""
    named: bool = False
    """The name may stand before the arguments, outside the object."""
    apart: bool = False
    """The model writes the name so."""
    arguments: str = "arguments"
    """The key that the arguments are written with."""
    separator: str = "\n"
    """Between two calls."""
    short_ids: bool = False
    """Ids of calls are nine letters and digits, as Mistral's templates demand."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be control tokens, and are read all the same."""
        return tuple(filter(None, (self.begin, self.end, *((ARGS, CALL_ID) if self.named else ()))))

    def new_id(self) -> str:
        """An id for a call that is drawn anew."""
        if self.short_ids:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    def write(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Calls ({"name", "arguments"}) in this form, as an answer has them."""
        if self.apart:
            return "".join(f"{self.begin}{call['name']}{ARGS}{_text(call.get('arguments'))}" for call in calls)
        objects = [
            f'{{"name": {_json(call["name"])}, "{self.arguments}": {_text(call.get("arguments"))}}}' for call in calls
        ]
        if self.named:
            return f"{self.begin} [{', '.join(objects)}]"
        if self.bare:
            return self.separator.join(objects)
        return self.separator.join(f"{self.begin}\n{each}\n{self.end}" for each in objects)


ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"

HERMES = Form("hermes", "<tool_call>", "</tool_call>")
LLAMA3 = Form("llama3", "<|python_tag|>", bare=True, arguments="parameters", separator="; ")
MISTRAL = Form("mistral", "[TOOL_CALLS]", named=True, separator="", short_ids=True)
MISTRAL_APART = replace(MISTRAL, apart=True)
"""Of newer models: NAME[ARGS]{...}."""
JSON = Form("json", bare=True)
FORMS = {form.name: form for form in (HERMES, LLAMA3, MISTRAL, JSON)}

_UNKNOWN = ("<function=", "<arg_key>", "<|tool▁call", "<｜tool▁call", "<|channel|>", "<start_function_call>")
"""What templates teach that no form here reads."""


def taught_form(source: str) -> Form | None:
    """The form that a template's text shows; None where it shows one that is not read here."""
    if any(text in source for text in _UNKNOWN):
        return None
    mistral = MISTRAL_APART if ARGS in source else MISTRAL
    for text, form in (("[TOOL_CALLS]", mistral), ("<tool_call>", HERMES), ("<|python_tag|>", LLAMA3)):
        if text in source:
            return form
    return LLAMA3 if '"parameters": ' in source and '"arguments": ' not in source else JSON


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(arguments: Any) -> str:
    """The same for an object and for its JSON; text that is no object stays as it is."""
    if not isinstance(arguments, str):
        return _json(arguments or {})
    try:
        held = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return _json(held) if isinstance(held, dict) else arguments
