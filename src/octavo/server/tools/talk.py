"""How one chat's answers are read: which parts are looked for, and which control tokens are marks of theirs.

Made by the job for each chat that needs it; chats without tools and without a reasoning parser have none, and their
answers are content alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from octavo.engine.detokenizer import TokenBytes
from octavo.models.tokenizer import Tokenizer
from octavo.server.tools.definitions import ToolPlan
from octavo.server.tools.forms import Form
from octavo.server.tools.parser import ToolParser
from octavo.server.tools.parts import AnswerParts
from octavo.server.tools.reasoning import CLOSE, OPEN, Reasoning
from octavo.types import Structure


@dataclass(frozen=True)
class Talk:
    """Of one chat; `parts` is called once a choice."""

    tokens: TokenBytes
    """The model's, with the marks as text."""
    plan: ToolPlan
    form: Form | None
    """Of calls; None: none are looked for."""
    thoughts: bool
    """They are looked for."""
    opened: bool
    """The prompt ends within thoughts."""
    structure: Structure | None = None
    """What the answers are held to."""

    def parts(self) -> AnswerParts:
        """What takes one choice's text apart."""
        tools = None if self.form is None else ToolParser(self.form, self.plan.names, self.plan.parallel)
        return AnswerParts(Reasoning(self.opened) if self.thoughts else None, tools)


def marks(form: Form | None, thoughts: bool) -> tuple[str, ...]:
    """The texts that an answer is taken apart at."""
    return (*(form.marks if form is not None else ()), *((OPEN, CLOSE) if thoughts else ()))


class MarkedTokens:
    """A tokeniser in which some control tokens are text."""

    def __init__(self, tokenizer: Tokenizer, texts: Collection[str]) -> None:
        self._tokenizer = tokenizer
        self._kept = frozenset(ident for text in texts if (ident := control_id(tokenizer, text)) is not None)
        self.token_bytes = tokenizer.token_bytes

    def is_special(self, token_id: int) -> bool:
        """A control token that is no mark."""
        return self._tokenizer.is_special(token_id) and token_id not in self._kept


def control_id(tokenizer: Tokenizer, text: str) -> int | None:
    """The id of a text that is a control token."""
    ident = tokenizer.token_id(text)
    return ident if ident is not None and tokenizer.is_special(ident) else None


def opens_thoughts(prompt: str) -> bool:
    """The template has begun the answer with a thought."""
    return prompt.rstrip().endswith(OPEN)
