"""HTTP servers as contenders: Octavo's own, started, stopped with its children, driven and ended like any other."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.bench.peers.compare import compare
from octavo.bench.peers.contender import Contender, Room, Timing, Work, rates
from octavo.bench.peers.environments import Environment, pins
from octavo.bench.peers.guard import Guard, session_pids
from octavo.bench.peers.html_report import report_html
from octavo.bench.peers.http import HTTP_FULL, HTTP_QUICK, http
from octavo.bench.peers.report import Setting, json_of, ratios_of, rows_of
from octavo.bench.peers.worker import Worker, WorkerError
from octavo.bench.peers.workers.http_worker import latencies, timing
from octavo.bench.serve.answer import Answer
from tests.support.tiny import Tiny, write_hf

WORK = Work("serve-2", 2, 24, 6, "output", way="http", requests=6)
ROOM = Room(max_streams=4, max_context=128, kv_tokens=2048, threads=1)
VOCAB = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("peers") / "model", Tiny(max_context=512, tied=False)).path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def guard() -> Iterator[Guard]:
    with Guard() as guard:
        yield guard


def test_octavos_server_is_measured_end_to_end_and_has_its_page(model: Path) -> None:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    found = compare([http("octavo", "bf16", model, None, ROOM)], [WORK], 2, seed, VOCAB, print)
    (seen,) = found.seen.values()
    assert seen.problem is None, seen
    assert seen.start_seconds > 0 and seen.memory_bytes > 10_000_000 and "--no-prefix-cache" in seen.facts["server"]
    assert len(found.samples) == 2
    for sample in found.samples:
        assert sample.output_rate == pytest.approx(6 * 6 / sample.seconds)
        assert 0 < sample.extra["ttft_p50_ms"] <= sample.extra["ttft_p99_ms"] < 1e3 * sample.seconds
        # A tiny model's tokens may arrive in one piece.
        assert 0 <= sample.extra["itl_p50_ms"] <= sample.extra["itl_p99_ms"] and sample.extra["tpot_p50_ms"] >= 0
    rows = rows_of(found)
    assert [(row.contender.name, row.work.figure) for row in rows] == [("octavo bf16 http", "output")]
    setting = Setting("portable", 1, None, model, "digest", True)
    page = report_html(json_of(found, rows, ratios_of(found, rows), setting))
    assert "octavo bf16 http" in page and "TTFT p50" in page and "Through HTTP servers" in page


def test_a_stopped_server_stands_still_with_its_engine_and_answers_after(
    model: Path, guard: Guard, tmp_path: Path
) -> None:
    worker = Worker(http("octavo", "bf16", model, None, ROOM), guard, tmp_path / "log")
    worker.start()
    try:
        worker.wait_ready(120)
        # The worker, its server and the server's engine.
        assert len(session_pids(worker.session)) >= 3
        for _ in range(2):
            worker.pause()
            assert set(session_pids(worker.session).values()) <= {"T", "t"}
            worker.resume()
            assert worker.run([[5, 6, 7]] * 3, 4, 60, 2).counts == (4, 4, 4)
    finally:
        worker.close()
    assert not session_pids(worker.session)


def test_a_server_that_ends_before_it_is_ready_is_told_with_its_log(guard: Guard, tmp_path: Path) -> None:
    worker_module = "octavo.bench.peers.workers.http_worker"
    settings = {"command": [sys.executable, "-c", "raise SystemExit(3)"], "ready": "/health", "fields": {}}
    contender = Contender("broken", "f32", (sys.executable, "-m", worker_module), settings, way="http")
    worker = Worker(contender, guard, tmp_path / "log")
    worker.start()
    with pytest.raises(WorkerError, match="the server ended with status 3 before it was ready") as raised:
        worker.wait_ready(60)
    assert "broken f32 http" in str(raised.value) and str(tmp_path / "log") in str(raised.value)
    worker.kill()


def answer(prompt: int, sent: float, *times: float) -> Answer:
    return Answer(
        due=sent,
        sent=sent,
        times=list(times),
        ended=times[-1] + 0.5,
        prompt_tokens=prompt,
        completion_tokens=len(times),
    )


def test_times_of_a_run_follow_from_its_answers() -> None:
    answers = [answer(3, 10.0, 11.0, 12.0, 13.0), answer(3, 10.0, 12.5, 14.0)]
    found = timing(answers, 10.0, 3)
    assert found == {"seconds": 4.5, "first": [1.0, 2.5], "last": [3.0, 4.0], "late": 2, "counts": [3, 2]}
    assert latencies(answers)["ttft_p50_ms"] == 1750 and latencies(answers)["itl_p50_ms"] == 1000
    with pytest.raises(RuntimeError, match="counted 3 tokens in a prompt of 4"):
        timing(answers, 10.0, 4)
    answers[0].fail("http 500", "no room")
    with pytest.raises(RuntimeError, match="http 500: no room"):
        timing(answers, 10.0, 3)


def test_a_closed_loop_counts_all_of_its_requests() -> None:
    found = Timing(3.0, (0.5,) * 6, (3.0,) * 6, 30, (6,) * 6, {})
    prefill, _, output = rates(WORK, found, None)
    assert output == 12.0 and prefill == 6 * 24 / 0.5


def test_every_server_gets_the_same_room(tmp_path: Path) -> None:
    for works, users in ((HTTP_QUICK, [8, 32]), (HTTP_FULL, [1, 8, 32])):
        assert [work.streams for work in works] == users
        assert all(work.way == "http" and work.figure == "output" and work.count > work.streams for work in works)
    room = Room(max_streams=32, max_context=200, kv_tokens=9216, threads=2)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x")
    commands = {}
    for peer in ("octavo", "vllm", "llamacpp"):
        environment = None if peer == "octavo" else Environment(peer, tmp_path, pins(peer))
        made = http(peer, "bf16", file, environment, room)
        assert made.name == f"{peer} bf16 http" and made.load["fields"]["ignore_eos"] is True
        commands[peer] = " ".join(made.load["command"])
        assert "--port {port}" in commands[peer]
    assert "--max-num-seqs 32" in commands["octavo"] and "--max-num-seqs 32" in commands["vllm"]
    # Slots share llama.cpp's context.
    assert "-c 8192" in commands["llamacpp"] and "--parallel 32" in commands["llamacpp"]
    assert "--no-prefix-cache" in commands["octavo"] and "--no-enable-prefix-caching" in commands["vllm"]
    assert "--no-cache-prompt" in commands["llamacpp"]
