"""The bounds of sampling parameters: one table for the API's bodies (protocol.py) and for `LLM`'s keywords.

Owns no state and has no off switch. What depends on the model or the configuration is checked in params.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Meta


@dataclass(frozen=True)
class Range:
    """The values that a number may have."""

    whole: bool
    """An integer."""
    low: float
    high: float | None = None
    """Included; None: no end."""
    works: float = 1
    """A value that works."""

    def holds(self, value: float) -> bool:
        """`value` is within."""
        return value >= self.low and (self.high is None or value <= self.high)

    def meta(self) -> Meta:
        """The bounds as msgspec checks them."""
        bounds: dict[str, Any] = {"ge": self.low}
        if self.high is not None:
            bounds["le"] = self.high
        return Meta(**bounds)

    def __str__(self) -> str:
        kind = "an integer" if self.whole else "a finite number"
        if self.high is None:
            return f"{kind} from {self.low:g} up"
        high = str(self.high) if self.whole else f"{self.high:g}"
        return f"{kind} from {self.low:g} to {high}"


MAX_TOKENS = Range(whole=True, low=0, works=16)
"""0 is for scoring prompts alone."""
MIN_TOKENS = Range(whole=True, low=0, works=0)
TEMPERATURE = Range(whole=False, low=0.0, high=2.0, works=0.7)
TOP_P = Range(whole=False, low=0.0, high=1.0, works=0.95)
TOP_K = Range(whole=True, low=-1, works=40)
MIN_P = Range(whole=False, low=0.0, high=1.0, works=0.05)
PENALTY = Range(whole=False, low=-2.0, high=2.0, works=0.5)
REPETITION = Range(whole=False, low=0.01, high=10.0, works=1.1)
"""Logits are divided and multiplied by it in float32, so it must stay far from both ends."""
BIAS = Range(whole=False, low=-100.0, high=100.0, works=-100)
LOGPROBS = Range(whole=True, low=0, works=5)
PRIORITY = Range(whole=True, low=-8, high=8, works=0)
TRUNCATION = Range(whole=True, low=1, works=1024)
DEADLINE_MS = Range(whole=True, low=1, high=86_400_000, works=10_000)
TOKEN_ID = Range(whole=True, low=0, works=0)
SEED = Range(whole=True, low=0, high=2**64 - 1, works=42)
"""Of `LLM`. The API takes a signed integer of 64 bits instead, as its SDKs send it, and a negative one counts as that
value + 2**64."""

MAX_TEMPLATE_CHARACTERS = 65_536
"""Of a chat template that a request brings."""
MAX_STOP_TOKEN_IDS = 64
MAX_SALT_CHARACTERS = 256
MAX_BAD_WORD_CHARACTERS = 256
MAX_STOP_CHARACTERS = 1024

NUMBERS: dict[str, Range] = {
    "max_tokens": MAX_TOKENS,
    "min_tokens": MIN_TOKENS,
    "temperature": TEMPERATURE,
    "top_p": TOP_P,
    "top_k": TOP_K,
    "min_p": MIN_P,
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
    "repetition_penalty": REPETITION,
    "logprobs": LOGPROBS,
    "prompt_logprobs": LOGPROBS,
    "seed": SEED,
}
"""Keyword -> its bounds."""
