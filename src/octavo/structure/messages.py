"""What an engine and its mask process say to each other: lists of these, one MessagePack frame a list.

Owns nothing. A *state* is one request's place in its grammar: the tokens that it has taken. Masks do not travel: they
lie in memory that both processes map, one row a state. There is no off switch here.
"""

from __future__ import annotations

import msgspec

from octavo.types import Structure

HEADER_WORDS = 16
"""32-bit words before the first row. Word 0: the state (plus 1) that is being worked on; word 1: the ticket (plus 1)
whose grammar is being compiled after its trial."""


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """The first message: the model, and what everything is bounded by."""

    model: str
    """Path of the model's tokeniser."""
    vocab: int
    eos: list[int]
    rows: int
    seconds: float
    """Processor time of one compilation; by the clock 1.75 times as much."""
    memory: int
    """Bytes beyond what the process holds at its start."""


class Compile(msgspec.Struct, frozen=True, array_like=True, tag="compile"):
    """Asks whether the structure can be had; answered by Compiled."""

    ticket: int
    structure: Structure


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A new state of no tokens."""

    state: int
    structure: Structure


class Sync(msgspec.Struct, frozen=True, array_like=True, tag="sync"):
    """The state keeps its first `keep` tokens, takes `tokens`, and is then asked what may follow: a Position."""

    state: int
    serial: int
    keep: int
    tokens: list[int]
    ahead: int
    """Forced tokens that the state may take by itself at most."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """The state is over."""

    state: int


class Compiled(msgspec.Struct, frozen=True, array_like=True, tag="compiled"):
    """Whether a structure can be had, and else why not: a clause without a stop."""

    ticket: int
    error: str | None


class Position(msgspec.Struct, frozen=True, array_like=True, tag="position"):
    """The state's row holds what may follow its tokens, those in `forced` included."""

    state: int
    serial: int
    taken: int
    """Tokens of the state, those in `forced` left out. Fewer than it was given: the grammar forbids the next one."""
    forced: list[int]
    """Tokens that alone were allowed, one after the other."""
    ended: bool
    """Nothing but the end may follow."""
    error: str | None
    seconds: float
    """Spent on it."""


Request = Compile | Open | Sync | Close
Reply = Compiled | Position
