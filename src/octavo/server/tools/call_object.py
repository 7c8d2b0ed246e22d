"""One call as a model writes it, {"name": ..., "arguments": {...}}, read one character at a time.

Owns what is known of the call so far. Life: `feed` each character, the first brace included, until `ended`, or until it
returns False: the text is no call. The call is announced (`name` is set for good) as soon as its name is known and its
arguments have begun as an object; from there on each character of the arguments is given out at once. Arguments that
come before the name, or as a string that holds JSON, are given out when they are known whole. A call without arguments
has {}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from enum import Enum, auto

from octavo.server.tools.json_machine import SPACE, JsonMachine, State

_ARGUMENTS = ("arguments", "parameters")
_OTHER = ("id", "type")
"""Keys that models write beside them."""


class _Reads(Enum):
    """What is collected at the call's own depth."""

    NOTHING = auto()
    KEY = auto()
    VALUE = auto()


class CallObject:
    """One object; `announce(name)` and `say(text)` are called as the call becomes known."""

    __slots__ = (
        "_announce",
        "_announced",
        "_arguments",
        "_key",
        "_known",
        "_machine",
        "_name",
        "_raw",
        "_reads",
        "_say",
        "ended",
    )

    def __init__(
        self,
        announce: Callable[[str], None],
        say: Callable[[str], None],
        known: Collection[str] | None = None,
    ) -> None:
        """known: names that make an object a call; None: any name does."""
        self._machine = JsonMachine()
        self._announce = announce
        self._say = say
        self._known = known
        self._announced = False
        self._name: str | None = None
        self._arguments: str | None = None
        self._key = ""
        self._raw = ""
        self._reads = _Reads.NOTHING
        self.ended = False

    def feed(self, character: str) -> bool:
        """Takes a character; False where this is no call, or none any more."""
        machine = self._machine
        before, depth = machine.state, machine.depth
        written = machine.escaped(character)
        if not machine.feed(character):
            return False
        if depth == 0:
            return character == "{"
        ok = True
        if self._reads is _Reads.KEY:
            self._raw += written
            ok = machine.state is not State.COLON or self._key_ended()
        elif self._reads is _Reads.VALUE:
            number_ended = depth == 1 and before is State.NUMBER and machine.state is not State.NUMBER
            if not number_ended:
                self._add(written)
            if number_ended or (machine.depth == 1 and machine.state is State.AFTER):
                ok = self._value_ended()
        elif machine.state is State.STRING and before in (State.KEY, State.KEY_OR_END):
            self._reads, self._raw = _Reads.KEY, written
        elif before is State.VALUE and character not in SPACE:
            ok = self._begin_value(written)
        return ok and (not machine.done or self._finish())

    def _key_ended(self) -> bool:
        self._reads = _Reads.NOTHING
        self._key = json.loads(self._raw, strict=False)
        return self._known is None or self._key in ("name", *_ARGUMENTS, *_OTHER)

    def _begin_value(self, written: str) -> bool:
        self._reads, self._raw = _Reads.VALUE, ""
        if self._key == "name" and written != '"':
            return False
        if self._key in _ARGUMENTS:
            if written not in '{"n' or self._arguments is not None:
                return False
            if written == "{" and self._name is not None:
                self._tell()
        self._add(written)
        return True

    def _add(self, written: str) -> None:
        if self._announced and self._key in _ARGUMENTS:
            self._say(written)
        else:
            self._raw += written

    def _value_ended(self) -> bool:
        """A value at the call's own depth is whole."""
        self._reads = _Reads.NOTHING
        if self._key == "name" and self._name is None:
            self._name = str(json.loads(self._raw, strict=False))
            if not self._name.isprintable() or not (self._name if self._known is None else self._name in self._known):
                return False
        elif self._key in _ARGUMENTS:
            self._arguments = "" if self._announced else _object_text(self._raw)
            if self._arguments is None:
                return False
        if self._name is not None and self._arguments is not None and not self._announced:
            self._tell()
            self._say(self._arguments)
        return True

    def _tell(self) -> None:
        assert self._name is not None
        self._announced = True
        self._announce(self._name)

    def _finish(self) -> bool:
        if self._name is None:
            return False
        if not self._announced:
            self._tell()
            self._say("{}")
        self.ended = True
        return True


def _object_text(raw: str) -> str | None:
    """The JSON of an object that is there as one, as a string of its JSON, or as null."""
    if raw == "null":
        return "{}"
    if not raw.startswith('"'):
        return raw
    text: str = json.loads(raw, strict=False)
    try:
        text.encode()
        held = json.loads(text, parse_constant=_refuse) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return (text.strip() or "{}") if isinstance(held, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
