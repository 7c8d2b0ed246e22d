"""Fuzzers of what stands between the network and the engine: `python -m benchmarks.fuzzers [NAME ...] [--seconds S]`.

detokeniser, stops, sse, bodies and models (fuzz.py). A case is its number: NAME --case NUMBER does one again.
Each case is drawn from its number alone, compared with a slow and obvious twin where there is one, and held to a time.
"""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from benchmarks.fuzz import fuzz as fuzz_models
from octavo.config import ServerConfig
from octavo.engine.detokenizer import Detokenizer
from octavo.server import params
from octavo.server.choice import Choice
from octavo.server.errors import ApiError
from octavo.server.formats import DONE, ChatFormat, CompletionFormat, line_safe
from octavo.server.job import Job
from octavo.server.params import ModelLimits, TextOptions
from octavo.server.protocol import ChatBody, parse_chat, parse_completion
from octavo.server.stops import StopMatcher
from octavo.types import FinishReason, TokenDelta, TokenLogprobs

CASE_SECONDS = 2.0
_ANY_LINE_END = re.compile("\r\n|\n|\r|\u2028|\u2029|\x85|\x0b|\x0c|\x1c|\x1d|\x1e")
_LIMITS = ModelLimits(num_tokens=1000, max_model_len=4096)
_CONFIG = ServerConfig()
_ODD_BYTES = (
    b"",
    b"a",
    b" the",
    b"\n",
    b"\r\n",
    b"\xf0",
    b"\x9f",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xe4\xb8",
    b"\x96",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xe2\x80\xa8",
    b"\xc2\x85",
    b"\xe2\x80",
    b"\xa8",
    b'"',
    b"\\",
    b"\x00",
    b"data: ",
    b"\xef\xbf\xbd",
    b"\xef\xbb\xbf",
    b"\x1b[0m",
    b"\xf4\x90\x80\x80",
)


class Vocabulary:
    """Random tokens: odd pieces and random bytes; some are control tokens."""

    def __init__(self, rng: random.Random) -> None:
        pieces = [rng.choice(_ODD_BYTES) if rng.random() < 0.7 else rng.randbytes(rng.randrange(6)) for _ in range(40)]
        self._pieces = pieces
        self.special = frozenset(rng.sample(range(40), 3))

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


def detokeniser(rng: random.Random) -> None:
    """The joined pieces are the decoded whole, and nothing is sent that a later byte could change."""
    tokens = Vocabulary(rng)
    skip = rng.random() < 0.5
    ids = [rng.randrange(45) for _ in range(rng.randrange(60))]
    decoder = Detokenizer(tokens, skip)
    raw = b""
    text = ""
    for token in ids:
        text += decoder.push(token)
        if not (skip and tokens.is_special(token)):
            raw += tokens.token_bytes(token)
        assert raw.decode("utf-8", "replace").startswith(text)
    assert text + decoder.finish() == raw.decode("utf-8", "replace")


def stops(rng: random.Random) -> None:
    """The cut is where the obvious search finds it, however the text is divided."""
    alphabet = rng.choice(["ab", "abc", "aé\U0001f600", "ab\n"])
    wanted = ["".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 5))]
    text = "".join(rng.choices(alphabet, k=rng.randrange(60)))
    include = rng.random() < 0.5
    matcher = StopMatcher(wanted, include)
    sent, at, found = "", 0, False
    while at < len(text) and not found:
        size = rng.randint(0, 7)
        piece, found = matcher.push(text[at : at + size])
        at += size
        sent += piece
        assert _cut(text, wanted, include)[0].startswith(sent)
    sent += "" if found else matcher.flush()
    assert (sent, found) == _cut(text, wanted, include), (text, wanted, include)


def _cut(text: str, wanted: list[str], include: bool) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in wanted if text[:end].endswith(stop)]
        if ending:
            return text[: end if include else end - max(map(len, ending))], True
    return text, False


def sse(rng: random.Random) -> None:
    """Any client reads the same events, however it splits lines, and they join to the text, entry by entry."""
    tokens = Vocabulary(rng)
    logprobs = rng.choice([None, 0, 2])
    options = TextOptions((), False, rng.random() < 0.5, 0, logprobs)
    count = rng.randint(1, 3)
    choices = {number: Choice(number, tokens, options) for number in range(count)}
    job = Job([], choices, [1], count, True, False, 1, count, logprobs is not None)
    shape = rng.choice([ChatFormat, CompletionFormat])(job, rng.choice(["m", 'm"\n\u2028', "\U0001f600"]), tokens)
    ids = {number: [rng.randrange(45) for _ in range(rng.randint(1, 20))] for number in choices}
    raw = b""
    for number, wanted in ids.items():
        for at, token in enumerate(wanted):
            last = at == len(wanted) - 1
            entry = (
                None if logprobs is None else [TokenLogprobs(-rng.random(), [1, 2][:logprobs], [-0.5, -1.0][:logprobs])]
            )
            finish = FinishReason.LENGTH if last else None
            piece = choices[number].feed(TokenDelta(number, [token], entry, finish))
            raw += line_safe(shape.chunk(choices[number], piece))
    raw += line_safe(shape.usage_chunk({"total_tokens": 1})) + DONE
    events = _read_events(raw.decode("utf-8"), re.compile("\n"))
    assert events == _read_events(
        raw.decode("utf-8"), re.compile("\r\n|\n|\r|\u2028|\u2029|\x85|\x0b|\x0c|\x1c|\x1d|\x1e")
    )
    for number, wanted in ids.items():
        mine = [choice for event in events for choice in event["choices"] if choice["index"] == number]
        shown = b"".join(
            tokens.token_bytes(token) for token in wanted if not (options.skip_special and tokens.is_special(token))
        )
        said = "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in mine)
        assert said == shown.decode("utf-8", "replace")
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["length"]
        told = [choice["logprobs"] for choice in mine if choice["logprobs"]]
        entries = sum(len(each["content"] if "content" in each else each["tokens"]) for each in told)
        assert entries == (0 if logprobs is None else len(wanted))


def _read_events(text: str, line_end: re.Pattern[str]) -> list[dict[str, Any]]:
    lines = [line for line in line_end.split(text) if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


_SEEDS = (
    b'{"prompt": "a", "max_tokens": 4, "temperature": 0.5, "stop": ["x", "\\u00e9"], "logit_bias": {"5": -1.5}}',
    b'{"prompt": [[1, 2], [3]], "n": 2, "logprobs": 3, "stream": true, "stream_options": {"include_usage": true}}',
    b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "seed": 7, "top_logprobs": 2}',
    b'{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"function": {"arguments": "{}"}}]}]}',
)
_PIECES = (
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b"\\",
    b"\\u",
    b"\\ud800",
    b":",
    b",",
    b"null",
    b"true",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"0.1e-999",
    b"9" * 60,
    b"\x00",
    b"\xff",
    b"\xc3",
    b"[" * 80,
    b'"n":',
    b'"prompt":',
    b'"messages":',
    b"[[]]",
    b'"stop":',
    b"-1",
    b"2147483648",
    b"18446744073709551616",
    b" " * 30,
    b"\xef\xbb\xbf",
    b'{"a":' * 70,
)


def bodies(rng: random.Random) -> None:
    """A body is a checked structure or a small refusal, and nothing else."""
    body = bytearray(rng.choice(_SEEDS))
    for _ in range(rng.choice((1, 2, 4, 16))):
        at = rng.randrange(len(body) + 1)
        change = rng.random()
        if change < 0.4:
            body[at:at] = rng.choice(_PIECES)
        elif change < 0.6:
            body[at : at + rng.randint(1, 8)] = rng.choice(_PIECES)
        elif change < 0.8:
            del body[at : at + rng.randint(1, 12)]
        elif change < 0.9 and body:
            body[at % len(body)] ^= 1 << rng.randrange(8)
        else:
            body[at:at] = rng.choice(_SEEDS)[: rng.randrange(60)]
    for parse in (parse_chat, parse_completion):
        try:
            _check(parse(bytes(body)))
        except ApiError as error:
            assert 400 <= error.status < 500 and len(error.body()) < 1024
            json.loads(error.body())


def _check(body: Any) -> None:
    """All that is checked before the engine is asked."""
    n = params.check_choices(body, _CONFIG)
    logprobs = (params.chat_logprobs if isinstance(body, ChatBody) else params.completion_logprobs)(body, _CONFIG)
    params.text_options(body, logprobs, _CONFIG)
    sampling = params.sampling_params(body, 5, logprobs, _LIMITS, _CONFIG)
    params.check_tokens([[1] * 5], [sampling], n, _CONFIG)
    assert 1 <= sampling.max_tokens <= 4096 and 0 <= sampling.temperature <= 2 and 0 < sampling.top_p <= 1
    assert all(0 <= token < 1000 for token, _ in sampling.logit_bias)


CASES: dict[str, Callable[[random.Random], None]] = {
    "detokeniser": detokeniser,
    "stops": stops,
    "sse": sse,
    "bodies": bodies,
}


def case(name: str, number: int) -> None:
    """One case; raises what is wrong."""
    CASES[name](random.Random(number))


def run(name: str, seconds: float, cases: int | None = None) -> dict[str, Any]:
    """Cases of one fuzzer until the time is over; the row of the bars."""
    first = random.SystemRandom().randrange(1 << 40)
    failures: list[str] = []
    number, end = first, time.monotonic() + seconds
    old = signal.signal(signal.SIGALRM, _too_slow)
    try:
        while time.monotonic() < end and len(failures) < 20 and number - first != cases:
            signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS)
            try:
                case(name, number)
            except Exception as error:  # whatever it is, it is the finding
                failures.append(f"{name} --case {number}: {type(error).__name__}: {str(error)[:300]}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            number += 1
    finally:
        signal.signal(signal.SIGALRM, old)
    return {
        "bar": f"{seconds:.0f} s of cases: no difference, no crash, each under {CASE_SECONDS:.0f} s",
        "figure": f"{number - first} cases, {len(failures)} failures",
        "met": not failures and number > first,
        "details": {"first": first, "failures": failures},
    }


def _too_slow(*_: Any) -> None:
    raise TimeoutError(f"took over {CASE_SECONDS} s")


def _row(name: str) -> Callable[[bool], dict[str, Any]]:
    return lambda short: run(name, 1.0 if short else 600.0)


fuzz_detokeniser, fuzz_stops, fuzz_sse, fuzz_bodies = map(_row, CASES)
"""Rows of the bars."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*CASES, "models"]))
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=600.0, show_default=True, help="For each; models: 600 or 5."
)
@click.option("--case", "number", type=int, default=None, help="One case again, of one fuzzer.")
def main(names: tuple[str, ...], seconds: float, number: int | None) -> None:
    """Run the named fuzzers, or all, one after the other."""
    if number is not None:
        if len(names) != 1 or names[0] == "models":
            raise click.UsageError("--case needs one fuzzer's name; of models: python -m benchmarks.fuzz NUMBER")
        case(names[0], number)
        click.echo("no failure")
        return
    met = True
    for name in names or (*CASES, "models"):
        result = fuzz_models(seconds < 60) if name == "models" else run(name, seconds)
        click.echo(f"{name}: {'' if result['met'] else 'FAILED: '}{result['figure']}")
        for failure in result["details"]["failures"]:
            click.echo(f"  {failure}")
        met = met and result["met"]
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
