"""What one repeat's answers say, by the formulas that every report prints (FORMULAS).

Nothing is left out to look better: percentiles are of complete answers, and beside them stands every request that was
dropped, cut or failed; goodput and deadlines count over all requests that were due.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from octavo.bench.serve.answer import Answer
from octavo.bench.serve.load import Load
from octavo.bench.serve.plan import Levels, Plan
from octavo.bench.stats import percentiles

FORMULAS = (
    "TTFT       first event with text - due; due: when the request was to be sent",
    "ITL        every gap between two events with text, pooled over all answers",
    "TPOT       (last event with text - first) / (output tokens by usage - 1), one value an answer",
    "E2E        last event with text - due",
    "rates      of complete answers over (end of the last answer - start)",
    "goodput    complete answers a second that meet every level; its share is of all requests that were due",
    "dropped    status 429 or 503; cut: broke off after its first text; failed: everything else that is not complete",
)
LATE_S = 0.010
LATE_SHARE = 0.01
CPU_LIMIT = 0.8
LAG_LIMIT_S = 0.010
MERGED = 1.02
"""More tokens an event than this is no longer one event a token."""


@dataclass(frozen=True)
class Metrics:
    """One repeat. Times in milliseconds, rates a second."""

    due: int
    complete: int
    dropped: int
    cut: int
    failed: int
    errors: dict[str, int]
    examples: dict[str, str]
    """What the first error of each kind said."""
    deadline_misses: int | None
    seconds: float
    request_rate: float
    output_rate: float
    total_rate: float
    """Prompt and output tokens."""
    ttft: dict[str, float]
    itl: dict[str, float]
    tpot: dict[str, float]
    e2e: dict[str, float]
    goodput: float | None
    good_share: float | None
    asked_prompt: int
    used_prompt: int | None
    cached_prompt: int | None
    asked_output: int
    used_output: int
    short: int
    """Complete answers of fewer tokens than asked."""
    tokens_per_event: float
    client_cpu: float
    """Of one core."""
    server_cpu: float | None
    lag_p99: float
    late: int
    latest: float
    others: float
    requests: tuple[dict[str, Any], ...]
    """A row a request, in the order of answers or of arrivals; its due is seconds from the start."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def faults(self) -> list[str]:
        """Why this is no result: the client measured itself."""
        found = []
        if self.client_cpu > CPU_LIMIT:
            found.append(f"the client used {self.client_cpu:.0%} of a core, more than {CPU_LIMIT:.0%}")
        if self.late > LATE_SHARE * self.due:
            found.append(
                f"{self.late} of {self.due} sends were late by over {LATE_S * 1e3:.0f} ms, up to {self.latest:.0f}"
            )
        if self.lag_p99 > LAG_LIMIT_S * 1e3:
            found.append(f"the client's timers were {self.lag_p99:.1f} ms late (p99): it got too little of a CPU")
        if not self.complete:
            found.append("no answer was complete")
        return found


def measure(load: Load, plan: Plan) -> Metrics:
    """See the module."""
    answers = load.answers
    whole = [answer for answer in answers if answer.complete]
    kinds = Counter(answer.failure for answer in answers if answer.failure)
    examples = {answer.failure: answer.detail for answer in reversed(answers) if answer.failure}
    dropped = kinds["http 429"] + kinds["http 503"]
    cut = sum(1 for answer in answers if answer.failure and answer.times)
    end = max((answer.ended for answer in answers), default=load.ended)
    seconds = max(1e-9, end - load.began)
    output = sum(answer.tokens for answer in whole)
    prompt = [answer.prompt_tokens for answer in whole if answer.prompt_tokens is not None]
    cached = [answer.cached_tokens for answer in whole if answer.cached_tokens is not None]
    events = sum(len(answer.times) for answer in whole)
    good = sum(1 for answer in whole if meets(answer, plan.levels)) if plan.levels.given else None
    late = [delay for delay in load.late if delay > LATE_S]
    return Metrics(
        due=len(answers),
        complete=len(whole),
        dropped=dropped,
        cut=cut,
        failed=len(answers) - len(whole) - dropped - cut,
        errors=dict(kinds),
        examples=examples,
        deadline_misses=_misses(answers, plan.deadline_s),
        seconds=seconds,
        request_rate=len(whole) / seconds,
        output_rate=output / seconds,
        total_rate=(output + (sum(prompt) or sum(answer.asked_prompt for answer in whole))) / seconds,
        ttft=_milliseconds([answer.ttft for answer in whole]),
        itl=_milliseconds([b - a for answer in whole for a, b in pairwise(answer.times)]),
        tpot=_milliseconds([answer.tpot for answer in whole]),
        e2e=_milliseconds([answer.e2e for answer in whole]),
        goodput=None if good is None else good / seconds,
        good_share=None if good is None else good / max(1, len(answers)),
        asked_prompt=sum(answer.asked_prompt for answer in whole),
        used_prompt=sum(prompt) if prompt else None,
        cached_prompt=sum(cached) if cached else None,
        asked_output=sum(answer.asked_output for answer in whole),
        used_output=output,
        short=sum(1 for answer in whole if answer.tokens < answer.asked_output),
        tokens_per_event=output / events if events else 0.0,
        client_cpu=load.client_cpu / load.seconds,
        server_cpu=None if load.server_cpu is None else load.server_cpu / load.seconds,
        lag_p99=float(np.percentile(load.lags, 99)) * 1e3 if load.lags else 0.0,
        late=len(late),
        latest=max(late, default=0.0) * 1e3,
        others=load.others,
        requests=tuple(_row(answer, load.began) for answer in answers),
    )


def _row(answer: Answer, began: float) -> dict[str, Any]:
    times = {"ttft": answer.ttft, "tpot": answer.tpot, "e2e": answer.e2e, "longest_gap": answer.longest_gap}
    return {
        "due_s": answer.due - began,
        **{f"{name}_ms": None if value is None else 1e3 * value for name, value in times.items()},
        "prompt": answer.prompt_tokens,
        "cached": answer.cached_tokens,
        "output": answer.tokens,
        "events": len(answer.times),
        "failure": answer.failure,
    }


def meets(answer: Answer, levels: Levels) -> bool:
    """A complete answer that has no second token has no TPOT and no gap to miss."""
    values = {"ttft": answer.ttft, "e2e": answer.e2e, "tpot": answer.tpot, "itl": answer.longest_gap}
    if answer.ttft is None:
        return False
    return all(
        value is None or value * 1e3 <= levels.given[name] for name, value in values.items() if name in levels.given
    )


def _misses(answers: list[Answer], deadline: float | None) -> int | None:
    if deadline is None:
        return None
    return sum(1 for answer in answers if not answer.complete or answer.e2e is None or answer.e2e > deadline)


def _milliseconds(values: list[float | None] | list[float]) -> dict[str, float]:
    known = [1e3 * value for value in values if value is not None]
    return {"mean": float(np.mean(known)), **percentiles(known)} if known else {}
