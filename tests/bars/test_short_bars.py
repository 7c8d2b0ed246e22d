"""The short form of each row of `make bars`, on the real model and a real server. Speed is printed, not asserted."""

from __future__ import annotations

import asyncio
import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks import rows
from benchmarks.bars import ROWS, verdict
from benchmarks.serving import ServerProcess
from octavo.bench.serve.client import fetch

ROOT = Path(__file__).parents[2]


def test_a_start_with_an_empty_cache_fetches_the_model_and_answers(tmp_path: Path) -> None:
    with ServerProcess(env={"OCTAVO_CACHE": str(tmp_path)}) as server:
        answer, _ = rows.short_chat(server)
        assert (answer.completion_tokens or 0) > 0
    assert list((tmp_path / "models").glob("*.gguf"))
    assert list((tmp_path / "packed").iterdir())


def test_a_second_start_answers_as_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    result = rows.second_start(short=True)
    with capsys.disabled():
        print("\nsecond-start:", verdict(result))
    assert len(result["details"]["ready"]) == 2


def test_thirty_two_streams_are_faster_than_one(capsys: pytest.CaptureFixture[str]) -> None:
    result = rows.batching(short=True)
    with capsys.disabled():
        print("\nbatching:", verdict(result))
    assert min(result["details"]["thirty_two"]) > max(result["details"]["one"])


def test_chats_cut_off_at_random_leave_nothing_behind_and_answers_equal_solo_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = rows.soak(short=True)
    with capsys.disabled():
        print("\nsoak:", verdict(result))
    assert result["met"], result


def test_the_serving_install_pulls_in_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    queue = [Requirement(line) for line in project["dependencies"]]
    seen: set[str] = set()
    while queue:
        requirement = queue.pop()
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if needed and requirement.name not in seen:
            seen.add(requirement.name)
            queue += [Requirement(line) for line in importlib.metadata.requires(requirement.name) or []]
    assert "numpy" in seen
    assert not seen & {"torch", "transformers", "triton"}


def test_no_row_of_the_bars_is_lost() -> None:
    serving = {"install-size", "second-start", "batching", "soak", "first-answer", "load-memory", "tests", "disk-tier"}
    fidelity = {"smollm2-types", "gemma-3-270m", "smollm2-token-ids", "gemma-3-token-ids", "fuzz"}
    instruments = {"client-times", "bench-null", "bench-planted", "bench-predicted"}
    faults = {"kills", "poison", "orphans"}
    assert serving | fidelity | instruments | faults <= set(ROWS)


def test_a_stopped_server_leaves_no_process_behind() -> None:
    with ServerProcess() as server:
        family = server.processes()
        assert len(family) >= 2
        status, _ = asyncio.run(fetch(server.target, "GET", "/health"))
        assert status == 200
    assert not [process for process in family if process.is_running() and process.status() != "zombie"]
