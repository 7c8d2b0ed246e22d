"""Settings of speculative decoding, and what is wrong about them.

Part of `EngineConfig`; `config.resolve()` asks for `faults` and has every None `resolved`. Nothing mutates it later.
Off switch: `proposer = "off"`, the default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MAX_DRAFT = 32
"""Tokens of one draft at most."""
_DRAFT_TOKENS = 8
_DRAFT_ROWS = 128
"""Draft tokens of a step where nothing is said: beyond that a step is bound by arithmetic, not by weights."""

PROPOSERS = ("off", "ngram")


@dataclass(frozen=True)
class SpeculativeConfig:
    """Who guesses the next tokens, how many, and how the guesses are checked."""

    proposer: str = "off"
    """"off" or "ngram" (what followed the last tokens when they stood in the text before)."""
    draft_tokens: int | None = None
    """Tokens of one draft at most. None: 8."""
    draft_from: str | None = None
    """Where "ngram" looks: "request" (its own prompt and output) or "tenant" (finished requests of the tenant too).
    None: "request"."""
    adaptive: bool | None = None
    """Draft as long as it pays, by measured acceptance and the step-time model; off: always all. None: on."""
    verification: str | None = None
    """"coupled" (the tokens are those without speculation) or "rejection" (the distribution is). None: "coupled"."""
    draft_rows: int | None = None
    """Draft tokens of one step at most, all requests together. None: what the other settings make useful."""

    @property
    def on(self) -> bool:
        return self.proposer != "off"


def faults(config: SpeculativeConfig) -> str | None:
    """What is wrong whatever the model and the machine, or None."""
    if config.proposer not in PROPOSERS:
        return f"--speculative {config.proposer!r} is not known; use one of {', '.join(PROPOSERS)}"
    given = {
        "--draft-tokens": config.draft_tokens,
        "--draft-from": config.draft_from,
        "--adaptive-drafts": config.adaptive,
        "--verification": config.verification,
        "--draft-rows": config.draft_rows,
    }
    named = [flag for flag, value in given.items() if value is not None]
    if named and not config.on:
        return f"{named[0]} is about speculation, which is off; --speculative ngram would turn it on"
    for flag, value, allowed in (
        ("--draft-from", config.draft_from, ("request", "tenant")),
        ("--verification", config.verification, ("coupled", "rejection")),
    ):
        if value is not None and value not in allowed:
            return f"{flag} {value!r} is not known; use one of {', '.join(allowed)}"
    for flag, number, high in (
        ("--draft-tokens", config.draft_tokens, MAX_DRAFT),
        ("--draft-rows", config.draft_rows, 4096),
    ):
        if number is not None and not 1 <= number <= high:
            return f"{flag} {number} is outside 1 to {high}; {min(max(number, 1), high)} would work"
    return None


def resolved(config: SpeculativeConfig, max_num_seqs: int, max_num_batched_tokens: int) -> SpeculativeConfig:
    """Every None filled."""
    if not config.on:
        return config
    tokens = config.draft_tokens or _DRAFT_TOKENS
    rows = config.draft_rows or min(tokens * max_num_seqs, _DRAFT_ROWS)
    return replace(
        config,
        draft_tokens=tokens,
        draft_from=config.draft_from or "request",
        adaptive=config.adaptive is not False,
        verification=config.verification or "coupled",
        draft_rows=min(rows, max_num_batched_tokens - 1),
    )


def logit_rows(config: SpeculativeConfig, max_num_seqs: int) -> int:
    """Rows of a step that may need logits, for a resolved configuration."""
    return max_num_seqs + (config.draft_rows or 0)
