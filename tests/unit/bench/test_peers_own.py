"""Other engines' own benchmarks: their output is read as they write it, and figures are held against each other."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.peers.contender import Work
from octavo.bench.peers.environments import Environment
from octavo.bench.peers.own import CASES, Agreement, Case, Own, measure_own, own_room
from octavo.bench.peers.own_tools import (
    Call,
    Given,
    ToolError,
    llama_batched,
    llama_bench,
    read_batched,
    read_latency,
    read_llama_bench,
    read_throughput,
    vllm_latency,
    vllm_throughput,
)
from octavo.bench.stats import Ratio, spread
from octavo.cli.main import cli
from tests.support.tiny import Tiny, write_hf

RECORDED = json.loads((Path(__file__).parent / "own_output.json").read_text())
"""What the tools themselves wrote, shortened by whole fields and lines."""
WORK = Work("output-2", 2, 16, 4, "output")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("peers") / "model", Tiny(max_context=512)).path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


def test_what_the_tools_of_llama_cpp_print_is_read() -> None:
    rates = read_batched(RECORDED["llama-batched-bench"])
    rows = [json.loads(line) for line in RECORDED["llama-batched-bench"].splitlines() if line.startswith("{")]
    assert len(rates) == len(rows) == 2
    for rate, row in zip(rates, rows, strict=True):
        assert rate == pytest.approx(row["pl"] * row["tg"] / row["t_tg"], rel=1e-3)
    (test,) = json.loads(RECORDED["llama-bench"])
    samples = read_llama_bench(RECORDED["llama-bench"])
    assert len(samples) == 3 and sum(samples) / 3 == pytest.approx(test["avg_ts"], rel=1e-3)
    assert (test["n_prompt"], test["n_gen"], test["n_depth"]) == (0, 7, 32)


def test_rates_are_of_the_work_that_was_asked() -> None:
    text = json.dumps({"avg_latency": 3.0, "latencies": [2.0, 4.0], "percentiles": {}})
    assert read_latency(text, Work("w", 8, 128, 64, "output")) == [256.0, 128.0]
    text = json.dumps({"elapsed_time": 4.0, "num_requests": 8, "requests_per_second": 2.0, "tokens_per_second": 384.0})
    assert read_throughput(text, Work("w", 8, 128, 64, "output")) == [128.0]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_batched, "log lines alone"),
        (read_batched, '{"pp": 1}'),
        (read_llama_bench, "[]"),
        (read_llama_bench, "Segmentation fault"),
        (lambda text: read_latency(text, WORK), '{"avg_latency": 1.0}'),
        (lambda text: read_latency(text, WORK), '{"latencies": [0.0]}'),
        (lambda text: read_throughput(text, WORK), "{}"),
    ],
)
def test_output_that_lacks_the_figure_is_told(read, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ToolError):
        read(text)


def test_a_tool_is_asked_for_the_work_that_we_do(tmp_path: Path) -> None:
    room = own_room(2)
    environment = Environment("x", tmp_path, {})
    for case in CASES:
        assert case.work.streams <= room.max_streams and case.work.prompt + case.work.output <= room.max_context
    given = Given("fp32", tmp_path, environment, room)
    many = Work("w", 8, 100, 50, "output")
    latency = " ".join(vllm_latency(given, many, 3, tmp_path / "o").command)
    assert "--input-len 100 --output-len 50 --batch-size 8" in latency and "--num-iters 3" in latency
    assert "--dtype float32" in latency
    throughput = " ".join(vllm_throughput(given, many, 3, tmp_path / "o").command)
    assert "--num-prompts 8" in throughput and "--random-input-len 100 --random-output-len 50" in throughput
    # The first token of an answer comes with its prompt: one step less.
    batched = " ".join(llama_batched(given, many, 3, tmp_path / "o").command)
    assert "-npp 100 -ntg 49 -npl 8,8,8" in batched
    alone = " ".join(llama_bench(given, Work("w", 1, 100, 50, "decode"), 3, tmp_path / "o").command)
    assert "-n 49 -d 100 -r 3" in alone


def script(code: str) -> object:
    """A tool that runs `code`, which knows the repeats as `n`."""

    def call(given: Given, work: Work, repeats: int, out: Path) -> Call:
        return Call((sys.executable, "-c", f"n={repeats}\n{code}"), lambda printed, written: json.loads(printed))

    return call


def run(model: Path, code: str, turns: int = 2) -> Agreement:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    case = Case("octavo", "script", WORK, script(code), turns, 3)  # type: ignore[arg-type]
    (found,), _ = measure_own(
        [("octavo", "bf16", model)], {"octavo": Environment("octavo", model, {})}, 200, 1, seed, print, [case]
    )
    return found


def test_our_measurement_and_a_tool_take_turns_and_become_pairs(model: Path) -> None:
    found = run(model, "import json; print(json.dumps([1e-3] * n))")
    assert found.problem is None and found.ratio is not None, found
    assert found.ratio.pairs == 6 and found.ours is not None and found.ours.median > 0
    assert found.verdict == "differs by more than 10%" and "own / ours 0.000" in found.line()
    own = Own((found,), 0.0, 1, ("machine    m",), {})
    assert own.as_json()["agreements"][0]["verdict"] == found.verdict and own.text()[0] == "machine    m"
    # One value a run makes one pair a turn.
    few = run(model, "print([5.0])", turns=1)
    assert few.ratio is None and "no result" in few.verdict


def test_a_tool_that_fails_is_told_and_leaves_nothing(model: Path) -> None:
    found = run(model, "import sys; print('no such model', file=sys.stderr); sys.exit(4)")
    assert found.problem == "script ended with status 4: no such model"
    assert found.line().endswith(found.problem)


def test_verdicts_follow_the_interval() -> None:
    def verdict(low: float, high: float) -> str:
        value = spread([1.0, 1.0])
        return Agreement("p", "f", "t", WORK, value, value, Ratio((low + high) / 2, low, high, 6)).verdict

    assert verdict(0.95, 1.05) == "agrees within 10%"
    assert verdict(1.2, 1.3) == verdict(0.7, 0.85) == "differs by more than 10%"
    assert verdict(0.95, 1.2).startswith("not decided")


def test_flags_that_mean_nothing_to_own_are_refused() -> None:
    done = CliRunner().invoke(cli, ["bench", "peers", "--own", "--quick"])
    assert done.exit_code != 0 and "--quick" in (done.output + str(done.exception))
