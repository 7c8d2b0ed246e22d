"""What one chat template can say of tools, found by trying it out, and the form in which its model writes calls.

Owns nothing that changes. Life: made once a template, at the first chat that has to do with tools; each trial renders a
short chat and looks for a word that only a template that knows of tools passes on. What a template cannot say,
render.py says in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.server.templates import ChatRefused, ChatTemplate
from octavo.server.tools.forms import FORMS, HERMES, Form, taught_form

_WORD = "probe7c1f"
_OTHER = "probe9a2e"
_USER = {"role": "user", "content": "hi"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _WORD,
        "description": "Tries.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Dialect:
    """A template's abilities."""

    form: Form | None
    """How the model writes calls; None: in a form that is not read here."""
    tools: bool = False
    """The template tells of `tools`."""
    system_tools: bool = False
    """It tells of the `tools` of a system message, as JSON."""
    system: bool = False
    """It has system turns."""
    calls: bool = False
    """It tells of the calls of an assistant's turn."""
    several: bool = False
    """Of more than one, too."""
    answers: bool = False
    """It tells of the turns of role tool."""


def dialect_of(template: ChatTemplate, chosen: str = "auto") -> Dialect:
    """chosen: --tool-parser. Waits for some renders; ChatTemplateError where one did not come to its end."""

    def says(words: tuple[str, ...], *messages: dict[str, Any], tools: bool = True) -> bool:
        try:
            text = "".join(part for part, _ in template.render(messages, tools=[_TOOL] if tools else None))
        except ChatRefused:
            return False
        return all(word in text for word in words)

    tools = says((_WORD,), _USER) or says((_WORD,), {"role": "system", "content": "s"}, _USER)
    in_system = {"role": "system", "content": "s", "tools": json.dumps([_TOOL])}
    system_tools = not tools and says((_WORD,), in_system, _USER, tools=False)
    known = tools or system_tools
    return Dialect(
        form=_form(template.source, chosen, known),
        tools=tools,
        system_tools=system_tools,
        system=says((_WORD,), {"role": "system", "content": _WORD}, _USER, tools=False),
        calls=_passes_calls(says, _OTHER),
        several=_passes_calls(says, _OTHER, f"{_OTHER}b"),
        answers=says((_OTHER,), _USER, _calls("a"), _answer("a", _OTHER)),
    )


def _form(source: str, chosen: str, known: bool) -> Form | None:
    if chosen in FORMS:
        return FORMS[chosen]
    return taught_form(source) if known else HERMES


def _passes_calls(says: Callable[..., bool], *words: str) -> bool:
    ids = [f"call{number}abcd" for number, _ in enumerate(words)]
    answers = [_answer(ident, "x") for ident in ids]
    return says(words, _USER, _calls(*words), *answers) or says(words, _USER, _calls(*words))


def _calls(*words: str) -> dict[str, Any]:
    calls = [
        {
            "id": f"call{number}abcd",
            "type": "function",
            "function": {"name": "f", "arguments": {"a": word}},
        }
        for number, word in enumerate(words)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _answer(ident: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": ident, "name": "f"}
