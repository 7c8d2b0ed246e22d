"""Load shapes: rates are kept, traces are scaled, and a shared prefix is a prefix of the same tokens."""

from __future__ import annotations

import json
import secrets
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serve.arrivals import Arrival, Block, drawn, poisson, read_trace, replay
from octavo.bench.serve.plan import Ask, Plan, TraceUse, Work, make_plan
from octavo.bench.serve.prompts import Bodies, Dialect
from octavo.config import ConfigError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2024-05-10 00:00:00.009930+00:00,879,55
"""


def dialect(ids: tuple[int, int] | None = (100, 32000), overhead: float = 0, per_word: float = 1.0) -> Dialect:
    return Dialect("m", None, ids, overhead, per_word, True, {"stream": True})


def prompt_of(arrival: Arrival, seed: str = "s") -> list[int]:
    found: list[int] = json.loads(Bodies(Ask(), dialect(), seed).body(arrival))["prompt"]
    return found


def mooncake(path: Path, rows: list[tuple[int, int, int, list[int]]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return str(path)


def test_poisson_arrivals_keep_the_rate_and_no_two_seeds_agree() -> None:
    seed = secrets.randbelow(1 << 31)
    found = poisson(Plan(shape="poisson", rate=20.0, requests=4000), seed)
    assert len(found) == 4000
    # The sum of 4000 gaps is within six of its standard deviations.
    assert found[-1].at == pytest.approx(200, rel=6 / 4000**0.5), seed
    assert found[5].at != poisson(Plan(shape="poisson", rate=20.0, requests=6), seed + 1)[5].at
    assert all(one.at <= 3 for one in poisson(Plan(shape="poisson", rate=20.0, seconds=3), seed))


def test_drawn_requests_have_the_lengths_that_were_asked() -> None:
    found = list(islice(drawn(Work(100, 20, shared_tokens=30), 1), 3))
    prompts = [prompt_of(one) for one in found]
    assert [len(prompt) for prompt in prompts] == [100] * 3 and {one.output for one in found} == {20}
    assert prompts[0][:30] == prompts[1][:30] and prompts[0][30:60] != prompts[1][30:60]
    spread = [one.output for one in islice(drawn(Work(100, 20, "exponential"), 1), 200)]
    assert 10 < sum(spread) / 200 < 30 and max(spread) <= 80


def test_azure_rows_are_read_in_both_forms_of_time(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    rows = read_trace(str(path))
    assert [(row.prompt, row.output) for row in rows] == [(374, 44), (396, 109), (879, 55)]
    assert rows[1].at == pytest.approx(4.314579, abs=1e-5) and rows[2].at > 86400
    made = replay(rows, TraceUse(factor=10), 2, None)
    assert [(one.prompt, one.output) for one in made.arrivals] == [(37, 4), (40, 11)]


def test_time_is_scaled_to_a_rate_a_load_or_a_speed(tmp_path: Path) -> None:
    rows = read_trace(mooncake(tmp_path / "t", [(1000 * i, 512, 100, [i]) for i in range(11)]))
    assert replay(rows, TraceUse(rate=5), None, None).arrivals[-1].at == pytest.approx(2)
    assert replay(rows, TraceUse(speed=4), None, None).arrivals[-1].at == pytest.approx(2.5)
    assert replay(rows, TraceUse(token_rate=612 * 11), None, None).arrivals[-1].at == pytest.approx(1)
    assert len(replay(rows, TraceUse(), None, 3.5).arrivals) == 4


def test_requests_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = read_trace(mooncake(tmp_path / "t", [(0, 5000, 10, list(range(10))), (5, 100, 10, [0])]))
    made = replay(rows, TraceUse(max_context=200), None, None)
    assert (made.left_out, len(made.arrivals)) == (1, 1)
    with pytest.raises(ConfigError, match="--max-context"):
        replay(rows, TraceUse(max_context=5), None, None)


@given(
    st.integers(0, 5),
    st.integers(1, 600),
    st.integers(1, 600),
    st.floats(1, 600, allow_nan=False),
)
def test_shared_hash_blocks_are_shared_tokens(shared: int, one: int, two: int, factor: float) -> None:
    from octavo.bench.serve.arrivals import TraceRow

    common = tuple(range(shared))
    a = TraceRow(0, shared * 512 + one, 8, (*common, 100, 101))
    b = TraceRow(0, shared * 512 + two, 8, (*common, 200, 201))
    first, second = replay([a, b], TraceUse(factor=factor), None, None).arrivals
    assert first.prompt == max(1, round(a.prompt / factor))
    left, right = prompt_of(first), prompt_of(second)
    assert (len(left), len(right)) == (first.prompt, second.prompt)
    same = round(shared * 512 / factor)
    assert left[:same][: len(right)] == right[:same][: len(left)]
    if min(len(left), len(right)) > same + 4:
        assert left != right[: len(left)]


def test_an_infinite_cache_saves_what_begins_an_earlier_prompt(tmp_path: Path) -> None:
    rows = read_trace(mooncake(tmp_path / "t", [(0, 1024, 1, [7, 8]), (1, 1024, 1, [7, 9]), (2, 700, 1, [7, 9])]))
    made = replay(rows, TraceUse(factor=8), None, None)
    assert made.shared_tokens == 64 + 64 + (88 - 64)


def test_the_same_block_has_the_same_tokens_whatever_its_length_and_other_seeds_others() -> None:
    long, short = Arrival(0, (Block("hash 1", 50),), 1), Arrival(0, (Block("hash 1", 20),), 1)
    assert prompt_of(long)[:20] == prompt_of(short)
    assert prompt_of(long, "t") != prompt_of(long)


def test_what_the_server_adds_is_taken_off_the_end_of_the_prompt() -> None:
    arrival = Arrival(0, (Block("shared", 10), Block("own", 10)), 5)
    ask = Ask(api="chat")
    body = json.loads(Bodies(ask, dialect(None, overhead=4), "s").body(arrival))
    text = body["messages"][0]["content"]
    assert len(text.split()) == 16 and body["max_tokens"] == 5
    halves = json.loads(Bodies(Ask(), dialect(None, per_word=2.0), "s").body(arrival))["prompt"]
    assert len(halves.split()) == 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shape": "closed", "rate": 1.0}, "--rate means nothing to --shape closed"),
        ({"shape": "trace", "trace": "t", "users": 1}, "--users"),
        ({"shape": "poisson"}, "--rate 2 would work"),
        ({"shape": "trace"}, "--trace FILE"),
        ({"shape": "trace", "trace": "t", "rate": 1.0, "speed": 2.0}, "exclude each other"),
        ({"shape": "poisson", "rate": 1.0, "prompt_tokens": 8, "shared_tokens": 8}, "--shared-tokens 4 would work"),
        ({"shape": "closed", "api": "chat", "prompts": "ids"}, "--prompts text"),
        ({"shape": "closed", "api": "chat", "vocab": 9}, "--vocab"),
        ({"shape": "closed", "extra": {"stream": False}}, "'stream'"),
    ],
)
def test_flags_that_cannot_go_together_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", '{"timestamp": 1}\n', "TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2"]
)
def test_a_file_that_is_no_trace_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(ConfigError, match="--trace"):
        read_trace(str(path))
