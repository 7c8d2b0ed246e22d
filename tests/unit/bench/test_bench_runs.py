"""The instruments on a tiny model: equal work, equal tokens, parts that add up, and reports that say what they saw."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.ablate import PAIRS, Pair, measure
from octavo.bench.arm import Arm, take_turns
from octavo.bench.offline import measure_offline
from octavo.bench.step import measure_step, metered
from octavo.bench.workload import constant, random_workload
from octavo.cli.main import cli
from octavo.config import EngineConfig, KVConfig, ModelConfig
from tests.support.tiny import Tiny, write_hf

CONTEXT = 4096


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    model = write_hf(tmp_path_factory.mktemp("bench") / "model", Tiny(max_context=CONTEXT))
    return EngineConfig(model=ModelConfig(path=str(model.path)), kv=KVConfig(size_tokens=8192))


def test_runs_repeat_from_cold_and_give_the_same_tokens(config: EngineConfig) -> None:
    work = random_workload(3, 70, constant(5), 200, secrets.randbits(32), temperature=0.8)
    with Arm("a", config) as arm:
        runs = [arm.run(work) for _ in range(2)]
    assert runs[0].outputs == runs[1].outputs
    assert [run.cached_tokens for run in runs] == [0, 0]
    assert runs[0].tokens == 15 and all(len(output) == 5 for output in runs[0].outputs)
    assert 0 < min(runs[0].first) <= max(runs[0].last) <= runs[0].seconds


def test_runs_that_take_turns_give_the_tokens_of_runs_alone_on_clocks_of_their_own(config: EngineConfig) -> None:
    work = random_workload(3, 40, constant(30), 200, secrets.randbits(32), temperature=0.8)
    with Arm("a", config) as a, Arm("b", config) as b:
        alone = a.run(work)
        began = time.perf_counter()
        one, two = take_turns((a, b), work)
        both = time.perf_counter() - began
    assert one.outputs == two.outputs == alone.outputs and one.steps == two.steps == alone.steps
    assert one.seconds + two.seconds <= both
    assert max(one.last) <= one.seconds and 0 < one.longest_gap < one.seconds


def test_an_ablation_compares_outputs_and_reports_its_interval(config: EngineConfig) -> None:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    pair = PAIRS["program"]()
    with Arm("A", pair.a(config)) as a, Arm("B", pair.b(config)) as b:
        found = measure(pair, (a, b), 6, seed)
    assert found.sound and found.different == 0
    assert found.ratio.low <= found.ratio.value <= found.ratio.high
    text = "\n".join(found.text())
    assert "machine" in text and "GB/s" in text and "the same tokens in every pair" in text


def test_chunks_are_compared_with_what_the_cost_of_steps_predicts(config: EngineConfig) -> None:
    pair = PAIRS["chunked-prefill"]()
    with Arm("A", pair.a(config)) as a, Arm("B", pair.b(config)) as b:
        found = measure(pair, (a, b), 6, secrets.randbits(31))
    assert found.sound and found.predicted is not None
    assert 0 < found.predicted < 0.7, "a step with 64 rows takes less than one with 1000"
    assert any(line.startswith("predicted") for line in found.text())


def test_an_ablation_whose_outputs_must_agree_says_so_where_they_differ(config: EngineConfig, tmp_path: Path) -> None:
    stranger = write_hf(tmp_path / "model", Tiny(max_context=2048, tied=False, seed=1)).path
    other = replace(config, model=replace(config.model, path=str(stranger)))
    pair = Pair(
        "two models",
        lambda base: base,
        lambda base: other,
        lambda vocab, seed: random_workload(4, 30, constant(10), vocab, seed),
    )
    with Arm("A", config) as a, Arm("B", other) as b:
        found = measure(pair, (a, b), 6, secrets.randbits(31))
    assert found.different and not found.sound
    assert any("must not differ" in line for line in found.text())


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_every_ready_made_pair_makes_work_that_its_settings_take(name: str, config: EngineConfig) -> None:
    pair = PAIRS[name]()
    work = pair.make(200, 1)
    longest = max(len(item.prompt) + item.max_tokens for item in work.items)
    for change in (pair.a, pair.b):
        changed = change(config)
        assert longest <= (changed.model.max_model_len or CONTEXT)
        assert longest <= (changed.kv.size_tokens or 0)
        budget = changed.scheduler.max_num_batched_tokens
        assert changed.scheduler.chunked_prefill or budget >= longest


def test_the_parts_of_a_step_make_up_the_step(config: EngineConfig) -> None:
    arm, meter = metered(lambda wrap: Arm("step", config, wrap))
    with arm:
        report = measure_step(arm, meter, 4, 64, 12, 1)
    assert report.steps >= 8 and report.native["linear"] > 0
    parts = sum(report.native.values()) + sum(report.host.values())
    assert parts == pytest.approx(report.total, rel=0.6)


def test_offline_counts_bytes_and_operations_against_the_measured_limits(config: EngineConfig) -> None:
    with Arm("offline", config) as arm:
        report = measure_offline(arm, (1, 3), 16, 6, 2, 1)
        weights = arm.sizes.product_weights
    assert [row.batch for row in report.rows] == [1, 3]
    assert all(row.bandwidth_share and row.flops_share and row.decode.median > 0 for row in report.rows)
    hidden, layers = 64, 2
    assert weights == layers * (hidden * (64 + 32 + 32 + 64) + 3 * hidden * 96) + hidden * Tiny().vocab


def test_the_command_writes_a_result_and_refuses_by_name(config: EngineConfig, tmp_path: Path) -> None:
    runner = CliRunner()
    out = tmp_path / "offline.json"
    arguments = [
        "bench",
        "offline",
        config.model.path,
        "--batch",
        "1,2",
        "--prompt-tokens",
        "8",
        "--output-tokens",
        "4",
    ]
    done = runner.invoke(cli, [*arguments, "--repeats", "1", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert [row["batch"] for row in json.loads(out.read_text())["rows"]] == [1, 2]
    for command in ("step", "micro"):
        done = runner.invoke(
            cli, ["bench", command, config.model.path, "--batch", "2", "--context", "20", "--steps", "6"]
        )
        assert done.exit_code == 0, done.output
        assert "machine" in done.output and "seed" in done.output and "others" in done.output
    assert "null" in runner.invoke(cli, ["bench", "ablate"]).output
    wrong = runner.invoke(cli, ["bench", "ablate", config.model.path, "--pair", "nothing"])
    assert wrong.exit_code != 0 and "--pair 'nothing' is not known" in str(wrong.exception)
    wrong = runner.invoke(cli, ["bench", "ablate", config.model.path, "--a", "--threads none"])
    assert wrong.exit_code != 0 and "--threads" in str(wrong.exception)
