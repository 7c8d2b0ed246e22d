"""What is to be measured: load shape, lengths, service levels; checked once, with the flag named where it cannot be.

Nothing is ignored: a flag that means nothing to the chosen shape is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.config import ConfigError

Shape = Literal["closed", "poisson", "trace"]


@dataclass(frozen=True)
class Work:
    """What requests look like where no trace says it."""

    prompt_tokens: int = 128
    output_tokens: int = 64
    lengths: Literal["constant", "exponential"] = "constant"
    shared_tokens: int = 0
    """Of each prompt, the same in all of one repeat."""


@dataclass(frozen=True)
class TraceUse:
    """How a trace's requests are taken. Of speed, rate and token_rate at most one is given."""

    path: str = ""
    factor: float = 1.0
    """Lengths are divided by it."""
    speed: float | None = None
    rate: float | None = None
    """Requests a second on average."""
    token_rate: float | None = None
    """Prompt and output tokens a second on average."""
    max_context: int | None = None
    """Longer requests (scaled) are left out."""


@dataclass(frozen=True)
class Levels:
    """Service levels: an answer is good where it meets all that are given. Milliseconds."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    """Of every gap."""
    e2e_ms: float | None = None

    @property
    def given(self) -> dict[str, float]:
        values = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "itl": self.itl_ms, "e2e": self.e2e_ms}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Ask:
    """How the server is asked."""

    api: Literal["completions", "chat"] = "completions"
    model: str | None = None
    prompts: Literal["auto", "ids", "text"] = "auto"
    vocab: int | None = None
    temperature: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return "/v1/completions" if self.api == "completions" else "/v1/chat/completions"


@dataclass(frozen=True)
class Plan:
    """All of it."""

    shape: Shape = "closed"
    users: int = 8
    rate: float | None = None
    requests: int | None = None
    seconds: float | None = None
    work: Work = field(default_factory=Work)
    trace: TraceUse = field(default_factory=TraceUse)
    levels: Levels = field(default_factory=Levels)
    ask: Ask = field(default_factory=Ask)
    deadline_s: float | None = None
    timeout_s: float = 600.0
    reuse: bool = True
    warm_up: int = 4
    repeats: int = 3
    seed: int = 0

    def describe(self) -> str:
        """One line for a person."""
        work = self.work
        lengths = f"{work.prompt_tokens} prompt and {work.output_tokens} output tokens, {work.lengths}"
        if work.shared_tokens:
            lengths += f", {work.shared_tokens} shared"
        until = " and ".join(
            text
            for text in (
                f"{self.requests} requests" if self.requests else "",
                f"{self.seconds:g} s" if self.seconds else "",
            )
            if text
        )
        if self.shape == "closed":
            return f"closed loop of {self.users} users, {lengths}, {until}"
        if self.shape == "poisson":
            return f"open loop, Poisson arrivals at {self.rate:g} a second, {lengths}, {until}"
        trace = self.trace
        scaled = {"speed": trace.speed, "requests a second": trace.rate, "tokens a second": trace.token_rate}
        time = ", ".join(f"{value:g} {name}" for name, value in scaled.items() if value is not None) or "its own time"
        return f"trace {trace.path}, lengths divided by {trace.factor:g}, {time}, {until or 'whole'}"


_OWN: dict[str, tuple[str, ...]] = {
    "users": ("closed",),
    "rate": ("poisson", "trace"),
    "trace": ("trace",),
    "length_factor": ("trace",),
    "speed": ("trace",),
    "token_rate": ("trace",),
    "max_context": ("trace",),
    "prompt_tokens": ("closed", "poisson"),
    "output_tokens": ("closed", "poisson"),
    "lengths": ("closed", "poisson"),
    "shared_tokens": ("closed", "poisson"),
}
"""Flags that belong to some shapes only."""


_RESERVED = frozenset({"model", "prompt", "messages", "max_tokens", "stream", "stream_options", "temperature"})


def make_plan(options: dict[str, Any]) -> Plan:
    """From the command's flags, None where one was not given. Raises ConfigError."""
    shape: Shape = options["shape"]
    given = {name: value for name, value in options.items() if value is not None}
    for name, shapes in _OWN.items():
        if name in given and shape not in shapes:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} means nothing to --shape {shape}; it goes with {' or '.join(shapes)}")
    if shape == "poisson" and "rate" not in given:
        raise ConfigError("--shape poisson needs --rate; --rate 2 would work")
    if shape == "trace" and "trace" not in given:
        raise ConfigError("--shape trace needs --trace FILE, a CSV of Azure's or a JSONL of Mooncake's form")
    scales = [name for name in ("speed", "rate", "token_rate") if name in given] if shape == "trace" else []
    if len(scales) > 1:
        raise ConfigError("--speed, --rate and --token-rate exclude each other; one of them scales a trace's time")
    if shape != "trace" and "requests" not in given and "seconds" not in given:
        given["requests"] = 16 * given.get("users", Plan.users) if shape == "closed" else 100
    work = Work(**{name: given[name] for name in Work.__dataclass_fields__ if name in given})
    if work.shared_tokens >= work.prompt_tokens:
        raise ConfigError(
            f"--shared-tokens {work.shared_tokens} leaves nothing of --prompt-tokens {work.prompt_tokens}; "
            f"--shared-tokens {work.prompt_tokens // 2} would work"
        )
    if given.get("api") == "chat" and given.get("prompts") == "ids":
        raise ConfigError("--prompts ids is not possible with --api chat; --prompts text works")
    if "vocab" in given and (given.get("api") == "chat" or given.get("prompts") == "text"):
        raise ConfigError("--vocab is for prompts of token ids, and these are text; leave it out")
    if own := sorted(_RESERVED & set(given.get("extra", ()))):
        raise ConfigError(
            f"--extra may not hold {own[0]!r}, which is set by flags of its own; '{{\"top_p\": 0.9}}' would work"
        )
    trace = TraceUse(
        path=given.get("trace", ""),
        factor=given.get("length_factor", 1.0),
        speed=given.get("speed"),
        rate=given.get("rate") if shape == "trace" else None,
        token_rate=given.get("token_rate"),
        max_context=given.get("max_context"),
    )
    plain = ("shape", "users", "requests", "seconds", "deadline_s", "timeout_s", "reuse", "warm_up", "repeats", "seed")
    return Plan(
        **{name: given[name] for name in plain if name in given},
        rate=given.get("rate") if shape == "poisson" else None,
        work=work,
        trace=trace,
        levels=Levels(**{name: given.get(f"slo_{name}") for name in Levels.__dataclass_fields__}),
        ask=Ask(**{name: given[name] for name in Ask.__dataclass_fields__ if name in given}),
    )
