"""N-gram proposer (prompt lookup, Saxena 2023): what followed the last tokens when they stood in the text before.

Owns one index a request, and with `draft_from = "tenant"` one a scope over the requests that have ended. An index
links each position to the one before it where the same `LONG` (or `SHORT`) tokens ended, as LZ77 coders do: it grows
by two entries a token, is brought up to date when it is asked (`AT_ONCE` positions a step at most, so a long prompt
takes some steps), and a question follows `_HOPS` links at most. All indexes hold `MOST` positions at most. Of the
places found the one wins whose text agrees furthest backwards; the latest where several do. A guess that reaches the
text's end goes on in itself, so that a loop is guessed whole.

Off switch: `SpeculativeConfig.proposer`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from octavo.speculative.proposer import NOTHING, Proposal, Query

SHORT, LONG = 2, 5
"""Tokens that must agree at least; the longer ones are asked first."""
_HOPS = 8
_FURTHEST = 24
"""Tokens compared backwards at most."""
_BOUNDS = (4, 8, 16)
"""Agreeing tokens from which the next grade begins."""
CORPUS_TOKENS = 1 << 16
"""Of ended requests, a scope; the older half goes when there are more."""
AT_ONCE = 8192
MOST = 1 << 19
"""About 350 bytes each."""
MAX_SCOPES = 64
"""Scopes with a corpus at most; the one unused longest goes."""


class Match(NamedTuple):
    """A place where the last tokens stood before."""

    after: int
    """Position of what followed there."""
    agreed: int
    """Tokens that agree, counted backwards."""


class Index:
    """Positions of one text by the tokens that end there."""

    __slots__ = ("_before", "_last", "upto")

    def __init__(self) -> None:
        self._last: tuple[dict[tuple[int, ...], int], ...] = ({}, {})
        """(LONG, SHORT): the latest position behind these tokens."""
        self._before: tuple[list[int], ...] = ([], [])
        """The one before it, by position; 0: none."""
        self.upto = 0
        """Positions below this are in."""

    def extend(self, tokens: Sequence[int], upto: int) -> None:
        """Takes in what ends below `upto`."""
        for size, last, before in zip((LONG, SHORT), self._last, self._before, strict=True):
            for position in range(self.upto, upto):
                if position < size:
                    before.append(0)
                    continue
                key = tuple(tokens[position - size : position])
                before.append(last.get(key, 0))
                last[key] = position
        self.upto = max(self.upto, upto)

    def match(self, text: Sequence[int], tokens: Sequence[int]) -> Match | None:
        """The best place in `text`, which is indexed, for the end of `tokens`, which may be the same list."""
        end = len(tokens)
        for size, last, before in zip((LONG, SHORT), self._last, self._before, strict=True):
            if end < size:
                continue
            place = last.get(tuple(tokens[end - size :]), 0)
            best: Match | None = None
            for _ in range(_HOPS):
                if not place:
                    break
                agreed = _agreed(text, place, tokens, end, size)
                if best is None or agreed > best.agreed:
                    best = Match(place, agreed)
                    if agreed >= _FURTHEST:
                        break
                place = before[place]
            if best is not None:
                return best
        return None


class _Corpus:
    """Texts of ended requests, one after another, and their index."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.index = Index()

    def add(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens[-CORPUS_TOKENS // 2 :]
        if len(self.tokens) > CORPUS_TOKENS:
            self.tokens = self.tokens[-CORPUS_TOKENS // 2 :]
            self.index = Index()


class NgramProposer:
    """See the module."""

    grades = len(_BOUNDS) + 1

    def __init__(self, shared: bool = False) -> None:
        """shared: ended requests of the same scope are looked through where the request's own text has nothing."""
        self._shared = shared
        self._own: dict[int, Index] = {}
        self._corpora: OrderedDict[str, _Corpus] = OrderedDict()
        self._held = 0
        """Positions in the indexes of requests."""
        self._left = 0
        """Positions that this step may still take in."""

    def propose(self, queries: Sequence[Query]) -> list[Proposal]:
        self._left = AT_ONCE
        return [self._one(query) for query in queries]

    def forget(self, key: int, tokens: Sequence[int], scope: str) -> None:
        index = self._own.pop(key, None)
        if index is not None:
            self._held -= index.upto
        if not self._shared:
            return
        corpus = self._corpora.setdefault(scope, _Corpus())
        self._corpora.move_to_end(scope)
        corpus.add(tokens)
        if len(self._corpora) > MAX_SCOPES:
            self._corpora.popitem(last=False)

    def _one(self, query: Query) -> Proposal:
        tokens = query.tokens
        index = self._own.get(query.key)
        if index is None:
            index = self._own[query.key] = Index()
        more = min(len(tokens) - index.upto, self._left, MOST - self._held)
        # What ends with the text itself is not among it: it would be found first.
        index.extend(tokens, index.upto + more)
        self._left -= more
        self._held += more
        found, text = index.match(tokens, tokens), tokens
        if self._shared and (found is None or found.agreed < LONG):
            corpus = self._corpora.get(query.scope)
            if corpus is not None:
                more = min(len(corpus.tokens) - corpus.index.upto, self._left)
                corpus.index.extend(corpus.tokens, corpus.index.upto + more)
                self._left -= more
                other = corpus.index.match(corpus.tokens, tokens)
                if other is not None and (found is None or other.agreed > found.agreed):
                    found, text = other, corpus.tokens
        if found is None:
            return NOTHING
        grade = sum(found.agreed >= bound for bound in _BOUNDS)
        return Proposal(_follow(text, found.after, query.most, text is tokens), grade)


def _agreed(text: Sequence[int], place: int, tokens: Sequence[int], end: int, least: int) -> int:
    """Tokens before `place` that equal those before `end`; `least` are known to."""
    most = min(place, end, _FURTHEST)
    agreed = least
    while agreed < most and text[place - agreed - 1] == tokens[end - agreed - 1]:
        agreed += 1
    return agreed


def _follow(text: Sequence[int], place: int, most: int, own: bool) -> tuple[int, ...]:
    """What stands from `place` on; the request's own text goes on in the guess itself."""
    draft = list(text[place : place + most])
    while own and len(draft) < most:
        draft.append(draft[len(draft) - (len(text) - place)])
    return tuple(draft)
