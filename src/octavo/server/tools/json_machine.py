"""JSON one character at a time: whether a text is still the beginning of a value, and where in it one stands.

Owns the stack of open objects and lists. Life: `feed` each character until `done`, or until it returns False, after
which the text can never become JSON. Strict, but for control characters inside strings, which are let through (models
write line ends there); `escaped` gives what JSON would have there.
"""

from __future__ import annotations

import json
from enum import Enum, auto


class State(Enum):
    """What may come next."""

    VALUE = auto()
    ITEM_OR_END = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    AFTER = auto()
    """Of a value: a comma or the container's end."""
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    LITERAL = auto()
    DONE = auto()


SPACE = " \t\n\r"
_NUMBER: dict[str, dict[str, str]] = {
    "sign": {"0": "zero", "1": "whole"},
    "zero": {".": "point", "e": "e"},
    "whole": {"0": "whole", "1": "whole", ".": "point", "e": "e"},
    "point": {"0": "fraction", "1": "fraction"},
    "fraction": {"0": "fraction", "1": "fraction", "e": "e"},
    "e": {"+": "e sign", "0": "exponent", "1": "exponent"},
    "e sign": {"0": "exponent", "1": "exponent"},
    "exponent": {"0": "exponent", "1": "exponent"},
}
"""Part of a number -> character (1: any digit but 0, e: E too, +: - too) -> the next part."""
_NUMBER_ENDS = ("zero", "whole", "fraction", "exponent")
_NUMBER_KIND = {**dict.fromkeys("123456789", "1"), "0": "0", "e": "e", "E": "e", "+": "+", "-": "+", ".": "."}
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}


class JsonMachine:
    """One value."""

    __slots__ = ("_hex", "_is_key", "_number", "_rest", "_stack", "state")

    def __init__(self) -> None:
        self.state = State.VALUE
        self._stack: list[str] = []
        self._is_key = False
        self._hex = 0
        self._number = ""
        self._rest = ""

    @property
    def depth(self) -> int:
        """Open objects and lists."""
        return len(self._stack)

    @property
    def done(self) -> bool:
        """The value is whole. A number at depth 0 never is, for another digit may follow."""
        return self.state is State.DONE

    def feed(self, character: str) -> bool:
        """Takes a character; False where no value goes on so."""
        state = self.state
        if state is State.STRING:
            if character == '"':
                self.state = State.COLON if self._is_key else self._ended()
            elif character == "\\":
                self.state = State.ESCAPE
            return True
        if state is State.ESCAPE:
            return self._escape(character)
        if state is State.HEX:
            self._hex -= 1
            self.state = State.HEX if self._hex else State.STRING
            return character in "0123456789abcdefABCDEF"
        if state is State.NUMBER:
            return self._digit(character)
        if state is State.LITERAL:
            expected, self._rest = self._rest[0], self._rest[1:]
            if not self._rest:
                self.state = self._ended()
            return character == expected
        if character in SPACE:
            return state is not State.DONE
        return self._structure(character)

    def _escape(self, character: str) -> bool:
        self.state = State.STRING
        if character == "u":
            self.state, self._hex = State.HEX, 4
            return True
        return character in '"\\/bfnrt'

    def _digit(self, character: str) -> bool:
        following = _NUMBER[self._number].get(_NUMBER_KIND.get(character, ""))
        if following is not None:
            self._number = following
            return True
        if self._number not in _NUMBER_ENDS:
            return False
        self.state = self._ended()
        return self.feed(character)

    def _structure(self, character: str) -> bool:
        state = self.state
        if character == '"' and state in (State.KEY, State.KEY_OR_END):
            self.state, self._is_key = State.STRING, True
            return True
        if character == ":" and state is State.COLON:
            self.state = State.VALUE
            return True
        if character == "," and state is State.AFTER:
            self.state = State.KEY if self._stack[-1] == "{" else State.VALUE
            return True
        if character in "}]":
            opened = "{" if character == "}" else "["
            empty = State.KEY_OR_END if opened == "{" else State.ITEM_OR_END
            if state not in (State.AFTER, empty) or self._stack[-1] != opened:
                return False
            self._stack.pop()
            self.state = self._ended()
            return True
        return state in (State.VALUE, State.ITEM_OR_END) and self._begin(character)

    def _begin(self, character: str) -> bool:
        """The first character of a value."""
        if character in "{[":
            self._stack.append(character)
            self.state = State.KEY_OR_END if character == "{" else State.ITEM_OR_END
        elif character == '"':
            self.state, self._is_key = State.STRING, False
        elif character == "-":
            self.state, self._number = State.NUMBER, "sign"
        elif character in "0123456789":
            self.state, self._number = State.NUMBER, "zero" if character == "0" else "whole"
        elif character in _LITERALS:
            self.state, self._rest = State.LITERAL, _LITERALS[character]
        else:
            return False
        return True

    def _ended(self) -> State:
        return State.AFTER if self._stack else State.DONE

    def escaped(self, character: str) -> str:
        """The character as JSON has it where the machine stands, before it is fed."""
        return json.dumps(character)[1:-1] if self.state is State.STRING and character < " " else character
