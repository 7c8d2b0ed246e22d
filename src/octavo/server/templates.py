"""Chat templates: messages to the text of a prompt, with the template held to time, memory and size.

Owns one worker process a template (template_worker.py). The process starts with the object, so that its start
overlaps with the model's; it is killed when a render takes too long or too much memory, and started anew by the next
one. A render costs a fraction of a millisecond. `close()` ends it. Off switch: requests to /v1/completions use no
template.

What users write never becomes a control token: where a message holds the text of one, that text travels through the
template as a random word, and comes back as a segment of its own that the tokeniser spells out (case by case, so that
all other chats are rendered from exactly their own text).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.config import child_environment
from octavo.models.tokenizer import Tokenizer, text_pattern

Message = dict[str, Any]
Segments = list[tuple[str, bool]]
"""(text, whether the template may write control tokens in it), in order."""

MAX_DEPTH = 64
"""Nesting of messages and tools."""
_START_SECONDS = 30.0


@dataclass(frozen=True)
class TemplateLimits:
    """What one render may take."""

    seconds: float = 2.0
    memory_bytes: int = 512 << 20
    """Beyond what the worker holds when it starts."""
    characters: int = 16 << 20
    """Of output."""


@dataclass(frozen=True)
class Rendering:
    """What a request may choose of its chat's prompt."""

    source: str | None = None
    """A template of its own."""
    opens_answer: bool = True
    """`add_generation_prompt`: the prompt ends with the beginning of an assistant's turn."""
    continues: bool = False
    """`continue_final_message`: it ends with the last message's text, whose turn stays open."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """`chat_template_kwargs`: further names that the template may read; it has its own special strings whatever
    they say."""


AS_USUAL = Rendering()


class ChatTemplateError(ValueError):
    """A chat that cannot be rendered; the message is one sentence for the user."""


class ChatRefused(ChatTemplateError):
    """The template itself raised: it cannot say this chat."""


class ChatTemplate:
    """One template, ready to render. Safe to call from several threads; renders run one after another."""

    def __init__(
        self,
        source: str,
        special_strings: Mapping[str, str] | None = None,
        control_texts: Sequence[str] = (),
        limits: TemplateLimits | None = None,
    ) -> None:
        self.source = source
        self._special_strings = dict(special_strings or {})
        self._controls = text_pattern(control_texts)
        self._limits = limits or TemplateLimits()
        self._lock = threading.Lock()
        self._worker: _Worker | None = _Worker(source, self._limits)
        self._closed = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate:
        """The tokeniser's own template, or another one for it; without either, an error that says how to supply one."""
        source = source if source is not None else tokenizer.chat_template
        if source is None:
            raise ChatTemplateError(
                "this model has no chat template: name a Jinja file with --chat-template, put it into "
                "chat_template.jinja in the model's directory (beside a .gguf file: the file's name with .jinja at its "
                "end), or use /v1/completions"
            )
        return cls(source, tokenizer.special_strings, tokenizer.control_texts)

    def check(self) -> None:
        """Waits for the worker and raises what is wrong with the template, if anything."""
        with self._lock:
            self._ready()

    def try_out(self) -> None:
        """Renders a chat of one message; raises what stops it."""
        self.render([{"role": "user", "content": "Hello"}])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continues: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> Segments:
        """The prompt of a chat. See `Rendering` for what may be chosen."""
        turns: list[Any] = [normalise(message, i) for i, message in enumerate(messages)]
        end = ""
        if continues:
            end = f"y{secrets.token_hex(8)}y"
            turns[-1]["content"] += end
        guard = _Guard(self._controls)
        content = {
            "documents": None,
            **guard.hide(variables or {}),
            **self._special_strings,
            "messages": guard.hide(turns),
            "tools": guard.hide(list(tools)) if tools else None,
            "add_generation_prompt": add_generation_prompt and not continues,
        }
        segments = guard.split(self._run(content))
        return cut_at(segments, end) if continues else segments

    def close(self) -> None:
        """Ends the worker; harmless when called twice."""
        with self._lock:
            self._closed = True
            self._drop()

    def _run(self, variables: Mapping[str, Any]) -> str:
        try:
            frame = json.dumps(variables).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"the messages cannot be given to the chat template: {error}") from error
        with self._lock:
            try:
                answer = self._ask(frame)
            except (OSError, EOFError):  # killed by some other hand, perhaps; its own doing shows again
                try:
                    answer = self._ask(frame)
                except (OSError, EOFError):
                    raise ChatTemplateError("the chat template took too much memory or time and was stopped") from None
            if answer.get("last"):
                self._drop()
        if "error" in answer:
            raise ChatRefused(f"the chat template refused the messages: {answer['error']}")
        return str(answer["text"])

    def _ask(self, frame: bytes) -> dict[str, Any]:
        """A render's answer; EOFError or OSError where the worker died of it. Holds the lock."""
        worker = self._ready()
        try:
            return worker.ask(frame, self._limits.seconds)
        except TimeoutError:
            self._drop()
            raise ChatTemplateError(
                f"the chat template took longer than {self._limits.seconds:g} s and was stopped; shorten the chat "
                "or mend the template"
            ) from None
        except (OSError, EOFError):
            self._drop()
            raise

    def _ready(self) -> _Worker:
        """The worker with its template compiled. Holds the lock."""
        if self._closed:
            raise ChatTemplateError("the server is stopping")
        if self._worker is not None and self._worker.ended():
            self._drop()
        worker = self._worker = self._worker or _Worker(self.source, self._limits)
        if worker.started:
            return worker
        try:
            worker.read(_START_SECONDS)
        except (OSError, EOFError) as error:
            self._drop()
            raise ChatTemplateError("the process that renders chat templates did not start") from error
        try:
            answer = worker.start(self._limits.seconds)
        except (OSError, EOFError) as error:
            self._drop()
            raise ChatTemplateError("the chat template took too much time or memory to compile") from error
        if "error" in answer:
            self._drop()
            raise ChatTemplateError(f"the chat template cannot be compiled: {answer['error']}")
        return worker

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


class _Worker:
    """The parent's end of a worker process."""

    def __init__(self, source: str, limits: TemplateLimits) -> None:
        first = {
            "template": source,
            "memory": limits.memory_bytes,
            "characters": limits.characters,
            "seconds": 4 * limits.seconds,
        }
        self.started = False
        self._first = json.dumps(first).encode()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "octavo.server.template_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)

    def start(self, seconds: float) -> dict[str, Any]:
        """Has the template compiled."""
        answer = self.ask(self._first, seconds)
        self.started = "error" not in answer
        return answer

    def ask(self, frame: bytes, seconds: float) -> dict[str, Any]:
        """Sends a frame and waits for its answer. TimeoutError, EOFError and OSError leave the worker unusable."""
        deadline = time.monotonic() + seconds
        waiting = memoryview(len(frame).to_bytes(4, "little") + frame)
        while waiting:
            self._wait(self._input, select.POLLOUT, deadline)
            waiting = waiting[os.write(self._input, waiting) :]
        return self.read(deadline - time.monotonic())

    def read(self, seconds: float) -> dict[str, Any]:
        """Waits for a frame."""
        deadline = time.monotonic() + seconds
        received = bytearray()
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "little"):
            self._wait(self._output, select.POLLIN, deadline)
            chunk = os.read(self._output, 1 << 20)
            if not chunk:
                raise EOFError("it ended")
            received += chunk
        answer: dict[str, Any] = json.loads(bytes(received[4:]))
        return answer

    @staticmethod
    def _wait(descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError

    def ended(self) -> bool:
        """Whether the process is gone, by whatever hand."""
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def cut_at(segments: Segments, end: str) -> Segments:
    """What comes before the last place of `end`."""
    for index in range(len(segments) - 1, -1, -1):
        text, from_template = segments[index]
        at = text.rfind(end)
        if at >= 0:
            return [*segments[:index], (text[:at], from_template)]
    raise ChatTemplateError(
        "the chat template does not show the last message's text as it is, so continue_final_message cannot be used"
    )


# --- what templates are given ---------------------------------------------------------------------


def normalise(message: Mapping[str, Any], index: int) -> Message:
    """A message as templates expect it.

    `content` becomes one string: null or absent is "", a list of parts is their texts joined without a separator.
    The `arguments` of tool calls become an object, whether they came as one or as its JSON.
    """
    turn = dict(message)
    turn["content"] = _content(message.get("content"), f"messages[{index}].content")
    if message.get("tool_calls"):
        turn["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    else:
        turn.pop("tool_calls", None)
    return turn


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise ChatTemplateError(f"{where} must be a string, a list of text parts or null")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        key = "refusal" if kind == "refusal" else "text"
        if kind not in ("text", "refusal"):
            shown = str(kind)[:40] if isinstance(part, Mapping) else type(part).__name__
            raise ChatTemplateError(
                f"{where}[{number}] is a part of type {shown!r}, which this model cannot read; send text"
            )
        if not isinstance(part.get(key), str):
            raise ChatTemplateError(f"{where}[{number}] lacks its {key}")
        texts.append(part[key])
    return "".join(texts)


def _tool_call(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    function["arguments"] = _arguments(function.get("arguments"))
    return {**call, "function": function}


def _arguments(arguments: Any) -> Any:
    """An object; text that is no JSON object (a model's mistake that a client sends back) stays text."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


# --- control tokens in users' text ----------------------------------------------------------------


class _Guard:
    """Hides control tokens' text from one render, and finds the places again."""

    def __init__(self, controls: re.Pattern[str] | None) -> None:
        self._controls = controls
        self._hidden: list[str] = []
        self._word = ""

    def hide(self, value: Any, depth: int = 0) -> Any:
        """The value with every control text in its strings, keys included, replaced by a word of letters and digits."""
        if depth > MAX_DEPTH:
            raise ChatTemplateError(f"messages and tools may be nested {MAX_DEPTH} deep at most")
        if isinstance(value, str):
            return value if self._controls is None else self._controls.sub(self._replace, value)
        if isinstance(value, Mapping):
            return {self.hide(key, depth + 1): self.hide(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item, depth + 1) for item in value]
        return value

    def _replace(self, found: re.Match[str]) -> str:
        self._word = self._word or f"x{secrets.token_hex(8)}x"
        self._hidden.append(found.group())
        return f"{self._word}{len(self._hidden) - 1}x"

    def split(self, text: str) -> Segments:
        """The rendered text, cut at the hidden places."""
        if not self._word:
            return [(text, True)]
        segments: Segments = []
        at = 0
        for found in re.finditer(f"{self._word}([0-9]+)x", text):
            segments += [(text[at : found.start()], True), (self._hidden[int(found.group(1))], False)]
            at = found.end()
        segments.append((text[at:], True))
        if any(self._word[:9] in part for part, from_template in segments if from_template):
            raise ChatTemplateError(
                "the chat template cuts a message inside the text of a control token; leave that out"
            )
        return [segment for segment in segments if segment[0]]
