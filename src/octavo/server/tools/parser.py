"""Tool calls out of an answer's text: one incremental parser for every form.

Owns what was read and not yet decided. Life: `push` text as it comes, `finish` when it has ended; `take` gives what has
become known since. Every character changes the state on its own, so what the pieces join to does not depend on how the
text was split, and an answer that is not streamed is the join of the same pieces.

What is undecided is held back: white space and the beginning of a mark, and a call until its name is known and its
arguments have begun. What turns out to be no call is content, as it was written; white space next to a call is part of
the call's form. Where a call goes wrong after it was announced, all that follows (up to the form's end) goes into its
arguments, and it never counts as complete. Off switch: tool_choice "none", --tool-parser none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from octavo.server.tools.call_object import CallObject
from octavo.server.tools.forms import ARGS, CALL_ID, Form
from octavo.server.tools.json_machine import SPACE, JsonMachine

_LONGEST_NAME = 256
_WORD = "[A-Za-z0-9_.-]"
_NAME = re.compile(_WORD)
_WHOLE_NAME = re.compile(rf"({_WORD}+)\s*(?:{re.escape(CALL_ID)}{_WORD}*)?(?:{re.escape(ARGS)}|\{{)")


def _beginning(text: str, rest: str = "") -> str:
    """A pattern for any beginning of a text; `rest` may follow all of it."""
    for character in reversed(text):
        rest = f"(?:{re.escape(character)}{rest})?"
    return rest


_PART_OF_NAME = re.compile(rf"{_WORD}+\s*(?:{_beginning(ARGS)}|{_beginning(CALL_ID, f'{_WORD}*{_beginning(ARGS)}')})")


@dataclass(slots=True)
class CallDelta:
    """What is new of one call: id and name when it is announced, arguments as they come."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Delta:
    """What is new of an answer; each call at most once."""

    reasoning: str = ""
    content: str | None = None
    calls: list[CallDelta] = field(default_factory=list)


class _Arguments:
    """Arguments whose name stood before them."""

    __slots__ = ("_announce", "_machine", "_name", "_say", "ended")

    def __init__(self, name: str, announce: Callable[[str], None], say: Callable[[str], None]) -> None:
        self._name, self._announce, self._say = name, announce, say
        self._machine = JsonMachine()
        self.ended = False

    def feed(self, character: str) -> bool:
        if self._machine.depth == 0:
            if character != "{":
                return character in SPACE
            self._announce(self._name)
        self._say(self._machine.escaped(character))
        ok = self._machine.feed(character)
        self.ended = self._machine.done
        return ok


class ToolParser:
    """The calls of one choice."""

    def __init__(self, form: Form, names: Collection[str], several: bool = True) -> None:
        """names: of the request's tools. several: False ends the answer with its first complete call."""
        self._form = form
        self._names = frozenset(names)
        self._several = several
        self._state: Callable[[str], None] = self._content
        self._raw: list[str] = []
        """All characters of what may be a call, since the last decided one."""
        self._space = ""
        self._mark = ""
        """The beginning of a mark."""
        self._word = ""
        """A name that stands before its object, so far."""
        self._line_start = True
        self._said_content = False
        self._object: CallObject | _Arguments | None = None
        self._listed = False
        """Within a list of calls."""
        self._inside = False
        """Behind the form's mark and before its end."""
        self._open = False
        """A call is announced and not complete."""
        self._out = Delta()
        self.count = 0
        """Calls announced."""
        self.ended = False
        """Nothing further is wanted."""
        self._finished_whole = True

    # --- in and out -----------------------------------------------------------------------------------

    def push(self, text: str) -> None:
        """The answer's text goes on."""
        for character in text:
            if self.ended:
                return
            self._state(character)

    def finish(self) -> None:
        """The answer's text has ended."""
        state, mark = self._state, self._mark
        if state == self._between and self._form.end.startswith(mark):
            mark = ""
        self._finished_whole = not mark and state in (self._content, self._between)
        if state == self._broken:
            self._argue(mark)
        elif state == self._content or mark:
            self._say(self._space + mark)
        else:
            self._say("".join(self._raw))
        self._space = self._mark = ""
        self._raw = []

    def take(self) -> Delta:
        """What became known since this was asked last."""
        out, self._out = self._out, Delta()
        return out

    @property
    def complete(self) -> bool:
        """There are calls, and all of them are whole; known for good once the text has ended."""
        return self.count > 0 and not self._open and self._finished_whole

    # --- states: each takes one character ---------------------------------------------------------------

    def _content(self, character: str) -> None:
        """Ordinary text."""
        if character.isspace() and not self._mark:
            self._space += character
            self._line_start = self._line_start or character == "\n"
            return
        if self._form.bare and not self._mark and self._line_start and character in "{[":
            self._raw = [self._space]
            self._space = ""
            self._begin_bare(character)
            return
        self._line_start = False
        self._mark += character
        if self._mark == self._form.begin:
            self._raw = [self._space, self._mark]
            self._space = self._mark = ""
            self._state = self._head
        elif not self._begins(self._mark):
            self._no_mark()

    def _no_mark(self) -> None:
        """The text held as the beginning of a mark is none; its end may be another's."""
        text, self._mark = self._mark, ""
        cut = next((at for at in range(1, len(text) + 1) if at == len(text) or self._begins(text[at:])), len(text))
        space, self._space = self._space, ""
        if text[-1].isspace():
            self._say(space + text[:-1])
            self._content(text[-1])
        else:
            self._say(space + text[:cut])
            self._mark = text[cut:]

    def _begins(self, text: str) -> bool:
        """Whether a text begins the form's mark and is not all of it."""
        return bool(text) and self._form.begin.startswith(text) and text != self._form.begin

    def _begin_bare(self, character: str) -> None:
        """A line that begins as an object or a list of them."""
        self._listed = character == "["
        if self._listed:
            self._raw.append(character)
            self._state = self._bare_list
        else:
            self._begin_object(character, self._names)

    def _bare_list(self, character: str) -> None:
        """Behind the [ of a list that may be one of calls."""
        if character == "{":
            self._begin_object(character, self._names)
        elif character in SPACE:
            self._raw.append(character)
        else:
            self._no_call(character)

    def _head(self, character: str) -> None:
        """Behind the form's mark."""
        self._inside = True
        if character in SPACE:
            self._raw.append(character)
        elif character == "[":
            self._listed = True
            self._raw.append(character)
            self._state = self._item
        elif character == "{":
            self._listed = False
            self._begin_object(character, None)
        elif self._form.named and _NAME.match(character):
            self._listed = False
            self._raw.append(character)
            self._word = character
            self._state = self._name
        else:
            self._no_call(character)

    def _item(self, character: str) -> None:
        """Behind the [ of a list that is one of calls."""
        if character == "{":
            self._begin_object(character, None)
        elif character in SPACE:
            self._raw.append(character)
        else:
            self._no_call(character)

    def _name(self, character: str) -> None:
        """NAME[ARGS]{...}, NAME[CALL_ID]ID[ARGS]{...} or NAME{...}: what stands before the object."""
        self._raw.append(character)
        self._word += character
        if whole := _WHOLE_NAME.fullmatch(self._word):
            self._word = ""
            self._begin_arguments(whole[1], character if character == "{" else "")
        elif len(self._word) > _LONGEST_NAME or not _PART_OF_NAME.fullmatch(self._word):
            self._word = ""
            self._no_call(self._raw.pop())

    def _begin_arguments(self, name: str, character: str) -> None:
        self._object = _Arguments(name, self._announce, self._argue)
        self._state = self._in_object
        if character:
            self._raw.pop()
            self._in_object(character)

    def _begin_object(self, character: str, known: Collection[str] | None) -> None:
        self._object = CallObject(self._announce, self._argue, known)
        self._state = self._in_object
        self._in_object(character)

    def _in_object(self, character: str) -> None:
        """Within a call."""
        assert self._object is not None
        if not self._open:
            self._raw.append(character)
        if not self._object.feed(character):
            if self._open:
                self._state = self._broken
                if not isinstance(self._object, _Arguments):
                    self._broken(character)
            else:
                self._no_call(self._raw.pop())
        elif self._object.ended:
            self._raw = []
            self._open = False
            self._object = None
            self.ended = not self._several
            self._state = self._between

    def _between(self, character: str) -> None:
        """Behind a call: its end, the next one, or text."""
        if character in SPACE and not self._mark:
            self._space += character
            return
        text = self._mark + character
        if text == self._form.begin and not self._listed:
            self._raw = [self._space, text]
            self._space = self._mark = ""
            self._state = self._head
        elif text == self._form.end or (text == "]" and self._listed):
            self._listed, self._inside = False, self._inside and text == "]"
            self._space = self._mark = ""
        elif self._begins(text) or (self._form.end and self._form.end.startswith(text)):
            self._mark = text
        elif self._between_objects(text):
            pass
        else:
            self._mark = ""
            self._listed = self._inside = False
            if not self._said_content:
                self._space = ""
            self._state = self._content
            self._line_start = False
            for each in text:
                self._content(each)

    def _between_objects(self, text: str) -> bool:
        """Takes what stands between two objects of one list, of one mark or of bare lines."""
        if (text in (",", ";") and self._form.bare) or (text == "," and self._listed):
            self._space = ""
        elif text == "{" and (self._inside or self._listed or self._form.bare):
            self._raw = [self._space]
            self._space = ""
            self._begin_object(text, self._names if self._form.bare else None)
        else:
            return False
        return True

    def _broken(self, character: str) -> None:
        """Behind the point where an announced call went wrong."""
        end = self._form.end
        self._mark += character
        if end and self._mark == end:
            self._mark = ""
            return
        while self._mark and not (end and end.startswith(self._mark)):
            self._argue(self._mark[0])
            self._mark = self._mark[1:]

    # --- what becomes known -----------------------------------------------------------------------------

    def _no_call(self, character: str) -> None:
        """What was held is text; the character that showed it may begin something new."""
        raw, self._raw = "".join(self._raw), []
        self._object = None
        self._listed = self._inside = False
        self._state = self._content
        self._line_start = False
        self._say(raw)
        self._content(character)

    def _say(self, text: str) -> None:
        if text:
            self._said_content = True
            self._out.content = (self._out.content or "") + text

    def _announce(self, name: str) -> None:
        self._raw = []
        self._open = True
        self._out.calls.append(CallDelta(self.count, self._form.new_id(), name))
        self.count += 1

    def _argue(self, text: str) -> None:
        index = self.count - 1
        if not self._out.calls or self._out.calls[-1].index != index:
            self._out.calls.append(CallDelta(index))
        self._out.calls[-1].arguments += text
