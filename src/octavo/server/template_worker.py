"""Renders one chat template for its parent, in a process that may be killed at any time.

Owns Jinja's sandbox. A template is a program by a stranger: the sandbox keeps it from everything but its arguments,
the address-space limit bounds its memory, an alarm ends the process when the parent cannot, and the parent ends it
when a render takes too long. Frames on stdin and stdout are a 4-byte length and JSON. The first out is {}: ready.
The first in is {"template", "memory", "characters", "seconds"}, answered by {} or {"error"}; each later one is the
template's variables, answered by {"text"} or {"error"} (with "last" where the process ends after it). The process
ends with its standard input.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO

from jinja2 import Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Arguments(dict[str, Any]):
    """A tool call's arguments: an object for templates that read it as one, its JSON for those that print it."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


class _Generation(Extension):
    """Templates for training mark the assistant's text by {% generation %}; here the mark changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as it is, not escaped for HTML as Jinja's own filter does."""
    known = {key: options[key] for key in ("separators", "sort_keys") if key in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **known)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def compile_template(source: str) -> Template:
    """The template in its sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def render(template: Template, variables: dict[str, Any], characters: int) -> str:
    """The text, of at most so many characters."""
    for message in variables.get("messages", ()):
        for call in message.get("tool_calls") or ():
            function = call.get("function", call)
            if isinstance(function.get("arguments"), dict):
                function["arguments"] = Arguments(function["arguments"])
    pieces, total = [], 0
    for piece in template.generate(**variables):
        total += len(piece)
        if total > characters:
            raise TemplateError(f"it wrote more than {characters} characters")
        pieces.append(piece)
    return "".join(pieces)


def _render_frame(template: Template, variables: dict[str, Any], characters: int) -> dict[str, Any]:
    return {"text": render(template, variables, characters)}


def _describe(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "it used too much memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, TemplateError) and text else f"{type(error).__name__}: {text}"


def _limit_memory(extra: int) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = now + extra if hard == resource.RLIM_INFINITY else min(now + extra, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    content: dict[str, Any] = json.loads(stream.read(int.from_bytes(head, "little")))
    return content


def _answer(stream: BinaryIO, work: Callable[[], dict[str, Any]]) -> bool:
    """Runs `work` and sends what it returns or the error; False where the process should not go on."""
    last = False
    try:
        frame = json.dumps(work()).encode()
    except Exception as error:  # whatever a stranger's template raises is an answer, not an end
        last = isinstance(error, MemoryError)
        frame = json.dumps({"error": _describe(error), "last": last}).encode()
    stream.write(len(frame).to_bytes(4, "little") + frame)
    stream.flush()
    return not last


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is the parent's to handle
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _answer(sink, dict)
    first = _read(source)
    if first is None:
        return
    signal.setitimer(signal.ITIMER_REAL, first["seconds"])
    compiled: list[Template] = []

    def start() -> dict[str, Any]:
        _limit_memory(first["memory"])
        compiled.append(compile_template(first["template"]))
        return {}

    if not _answer(sink, start) or not compiled:
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    while (variables := _read(source)) is not None:
        signal.setitimer(signal.ITIMER_REAL, first["seconds"])
        if not _answer(sink, partial(_render_frame, compiled[0], variables, first["characters"])):
            return
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone, and with it whoever could read the answer; nothing is left to flush
