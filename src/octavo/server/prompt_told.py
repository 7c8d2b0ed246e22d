"""What an answer tells of its prompt: the text in front (`echo`), and the prompt's own log-probabilities.

One a choice. The engine sends the prompt's log-probabilities in parts, before the first token; they are collected, and
everything goes into the choice's first piece that has tokens or an end, streamed or not. Off switch: `NOTHING_TOLD`,
for a request that asks for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.engine.detokenizer import Detokenizer, TokenBytes
from octavo.types import TokenLogprobs

Entry = tuple[int, TokenLogprobs | None, int]
"""(token, its log-probabilities, where its text begins); the first token of a prompt has none."""


@dataclass(frozen=True)
class Echo:
    """A prompt as it is repeated."""

    text: str
    offsets: tuple[int, ...]
    """Where each token's text begins."""


def echo_of(ids: Sequence[int], prompt: str | None, tokens: TokenBytes) -> Echo:
    """prompt: the text as it was sent, which is repeated as it is; None: the ids were sent, and are decoded.

    A token whose text is not in the prompt, such as a BOS that was put in front of it, has no width.
    """
    detokenizer = Detokenizer(tokens, skip_special=False)
    pieces = [detokenizer.push(token) for token in ids]
    text = "".join(pieces) + detokenizer.finish() if prompt is None else prompt
    at, offsets = 0, []
    for piece in pieces:
        offsets.append(at)
        if text.startswith(piece, at):
            at += len(piece)
        elif at == 0 and piece[:1] == " " and text.startswith(piece[1:]):
            at = len(piece) - 1
    return Echo(text, tuple(offsets))


@dataclass(frozen=True)
class Telling:
    """What a request wants to be told of its prompts: alternatives a token, None: off."""

    echo_logprobs: int | None = None
    """In the entries of the echo."""
    shown: int | None = None
    """As `prompt_logprobs`."""

    @property
    def wanted(self) -> int | None:
        """What the engine is asked for."""
        asked = [count for count in (self.echo_logprobs, self.shown) if count is not None]
        return max(asked, default=None)

    def told(self, ids: Sequence[int], echo: Echo | None) -> Told:
        """Of one choice."""
        return NOTHING_TOLD if echo is None and self.wanted is None else PromptTold(ids, echo, self)


class Told(Protocol):
    """See the module."""

    @property
    def text(self) -> str:
        """What stands in front of the answer."""
        ...

    def collect(self, scores: Sequence[TokenLogprobs]) -> None:
        """The next log-probabilities of the prompt."""
        ...

    def entries(self) -> list[Entry]:
        """Of the text in front."""
        ...

    def prompt_logprobs(self) -> list[tuple[int, TokenLogprobs | None]] | None:
        """All tokens of the prompt with theirs, where they were asked for."""
        ...


class NothingTold:
    """The answer alone."""

    text = ""

    def collect(self, scores: Sequence[TokenLogprobs]) -> None:
        return None

    def entries(self) -> list[Entry]:
        return []

    def prompt_logprobs(self) -> list[tuple[int, TokenLogprobs | None]] | None:
        return None


NOTHING_TOLD = NothingTold()


class PromptTold:
    """A prompt that is repeated, scored, or both."""

    def __init__(self, ids: Sequence[int], echo: Echo | None, telling: Telling) -> None:
        self.text = "" if echo is None else echo.text
        self._ids = ids
        self._echo = echo
        self._telling = telling
        self._scores: list[TokenLogprobs] = []

    def collect(self, scores: Sequence[TokenLogprobs]) -> None:
        self._scores.extend(scores)

    def entries(self) -> list[Entry]:
        if self._echo is None or self._telling.echo_logprobs is None:
            return []
        scores = self._all(self._telling.echo_logprobs)
        return [(token, score, at) for (token, score), at in zip(scores, self._echo.offsets, strict=True)]

    def prompt_logprobs(self) -> list[tuple[int, TokenLogprobs | None]] | None:
        return None if self._telling.shown is None else self._all(self._telling.shown)

    def _all(self, alternatives: int) -> list[tuple[int, TokenLogprobs | None]]:
        assert len(self._scores) == len(self._ids) - 1, "a prompt's log-probabilities come before its first token"
        cut = [
            TokenLogprobs(each.logprob, each.top_ids[:alternatives], each.top_logprobs[:alternatives], each.rank)
            for each in self._scores
        ]
        return list(zip(self._ids, [None, *cut], strict=True))
