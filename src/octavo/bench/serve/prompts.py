"""Prompts of known length for a server whose tokeniser is not at hand, and the bodies of requests.

Token ids where the server takes them: exact. Else text of common words: how many tokens a word makes, and how many the
template adds, is measured at the start by the server's own usage, and every answer's usage is compared with what was
asked. Tokens follow from (seed, name of the block), so equal names are equal tokens.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.bench.serve.arrivals import Arrival, Block
from octavo.bench.serve.plan import Ask

# fmt: off
WORDS = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
    "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "you",
    "were", "all", "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who", "will",
    "no", "more", "if", "out", "so", "up", "said", "what", "its", "about", "than", "into", "them", "can",
    "only", "other", "time", "new", "some", "could", "these", "two", "may", "first", "then", "do", "any",
    "like", "my", "now", "over", "such", "our", "man", "me", "even",
]
# fmt: on
"""Short words, each one token (with the space before it) in the vocabularies of today's models."""


@dataclass(frozen=True)
class Dialect:
    """What a server takes, found by asking it (probe.py)."""

    model: str
    max_model_len: int | None
    ids: tuple[int, int] | None
    """Token ids [low, high); None: text."""
    overhead: float
    """Tokens that the server adds to a prompt: a template's, a beginning-of-sequence."""
    per_word: float
    usage: bool
    """It tells usage at the end of a stream."""
    fields: dict[str, Any]
    """Of every body."""

    def describe(self) -> str:
        added = f", {self.overhead:g} added by the server" if self.overhead else ""
        if self.ids is not None:
            return f"token ids {self.ids[0]} to {self.ids[1] - 1}{added}"
        measured = "by the server's usage" if self.usage else "not known: the server tells no usage"
        return f"text of common words, {self.per_word:.4g} tokens a word{added} ({measured})"


class Bodies:
    """Makes the bodies of one repeat's requests."""

    def __init__(self, ask: Ask, dialect: Dialect, seed: str) -> None:
        self._ask = ask
        self._dialect = dialect
        self._seed = seed
        self._head = msgspec.json.encode({"model": dialect.model, **dialect.fields, **ask.extra})[:-1]
        self._part = functools.lru_cache(maxsize=4096)(self._block)

    def body(self, arrival: Arrival) -> bytes:
        """What is sent for it."""
        parts = [self._part(block) for block in self._less_overhead(arrival.blocks)]
        if self._dialect.ids is not None:
            prompt = b'"prompt":[' + b",".join(parts) + b"]"
        elif self._ask.api == "completions":
            prompt = b'"prompt":"' + b" ".join(parts) + b'"'
        else:
            prompt = b'"messages":[{"role":"user","content":"' + b" ".join(parts) + b'"}]'
        return b'%s,"max_tokens":%d,%s}' % (self._head, arrival.output, prompt)

    def _less_overhead(self, blocks: tuple[Block, ...]) -> list[Block]:
        """The end of the prompt makes room for what the server adds, so that shared prefixes stay whole."""
        left = max(1, sum(block.tokens for block in blocks) - round(self._dialect.overhead))
        kept = []
        for block in blocks:
            if left > 0:
                kept.append(Block(block.name, min(block.tokens, left)))
            left -= block.tokens
        return kept

    def _block(self, block: Block) -> bytes:
        rng = random.Random(f"{self._seed}/{block.name}")
        if self._dialect.ids is not None:
            return ",".join(map(str, rng.choices(range(*self._dialect.ids), k=block.tokens))).encode()
        words = max(1, round(block.tokens / self._dialect.per_word))
        return " ".join(rng.choices(WORDS, k=words)).encode()
