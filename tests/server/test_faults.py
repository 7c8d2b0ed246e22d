"""Engines that die of every kind of fault, under real requests: nothing is lost, and nobody innocent fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from octavo.engine import faults, watch
from octavo.engine.client import AsyncEngineClient
from octavo.types import NewRequest, SamplingParams
from tests.server.test_lifecycle import Stream, started
from tests.server.test_streams import finishes, joined
from tests.support.serve import Serve
from tests.support.server import ECHO, ROOT, alive, children, echo_config, serving, spawn, wait_until
from tests.support.system import make_system
from tests.support.tiny import Tiny, write_hf

BODY = {"prompt": "the world", "max_tokens": 120, "ignore_eos": True, "temperature": 1.5, "seed": 11, "logprobs": 1}


def _tiny(path: Path, stuck: float = 20.0) -> Serve:
    engine = EngineConfig(
        model=ModelConfig(path=str(path), name="tiny"), kv=KVConfig(size_tokens=8192), stuck_seconds=stuck
    )
    return Serve(engine, ServerConfig(port=0))


@pytest.fixture(scope="module")
def calm(tiny_path: Path) -> str:
    with serving(_tiny(tiny_path)) as server:
        return joined(server.stream("/v1/completions", BODY))


ALL = (
    "segv@life=0,step=9;memory@life=1,step=7;cut@life=2,message=9;kill@life=3,step=4;error@life=4,step=30;"
    "abort@life=5,step=40"
)


def test_a_stream_goes_on_through_every_kind_of_death(
    tiny_path: Path, calm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faults.VARIABLE, ALL + ";slow@load=1,seconds=0.02")
    with serving(_tiny(tiny_path)) as server:
        events = Stream(server, {**BODY, "stream_options": {"include_usage": True}}).result()
        assert joined(events) == calm
        assert server.metric("octavo_engine_restarts_total") == 6
        usage = events[-1]["usage"]
        assert server.metric("octavo_reply_completion_tokens_total") == usage["completion_tokens"] == 120
        assert server.metric("octavo_reply_prompt_tokens_total") == usage["prompt_tokens"]


@pytest.mark.parametrize("where", ["step=5", "step=5,op=3"])
def test_a_stuck_step_is_noticed_told_and_ended(
    tiny_path: Path, calm: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv(faults.VARIABLE, f"stuck@life=0,{where}")
    with serving(_tiny(tiny_path, stuck=2.0)) as server:
        stream = Stream(server, BODY)
        wait_until(lambda: server.client.get("/health").status_code == 503, "its heart is late")
        assert server.client.get("/health").json() == {"status": "stuck"}
        assert server.client.get("/ready").status_code == 503
        wait_until(lambda: server.client.get("/health").json() == {"status": "restarting"}, "it is ended")
        assert server.client.get("/ready").json() == {"status": "restarting"}
        late = Stream(server, BODY)
        assert joined(stream.result()) == joined(late.result()) == calm
        assert server.client.get("/health").json() == {"status": "ok"}
        assert server.client.get("/ready").status_code == 200
        assert any("nothing moved for" in line and "in step 5" in line for line in server.lines)
        wait_until(lambda: any("_stick" in line for line in server.lines), "it says where it stood")


def test_a_stopped_process_is_stuck_too_though_it_was_idle(tiny_path: Path) -> None:
    what = echo_config(tiny_path)
    engine = replace(what.engine, stuck_seconds=2.0)
    with serving(Serve(engine, what.server, what.module)) as server:
        pid = server.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: not alive(pid), "it is ended")
        assert server.complete(prompt="fine")["choices"][0]["text"] == "fine"


def test_the_request_that_kills_is_failed_and_those_beside_it_are_equal(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = [40, 41, 42]
    monkeypatch.setenv(faults.VARIABLE, f"segv@marker={'.'.join(map(str, marker))},after=3")
    with serving(echo_config(tiny_path)) as server:
        others = [Stream(server, {"prompt": f"drop {i} ", "max_tokens": 900, "ignore_eos": True}) for i in range(5)]
        started(server, 5)
        poison = Stream(server, {"prompt": marker, "max_tokens": 50, "ignore_eos": True})
        events = poison.result()
        assert "the engine died 2 times with this request alone in it" in events[-1]["error"]["message"]
        for i, other in enumerate(others):
            events = other.result()
            assert finishes(events) == ["length"] and joined(events) == (f"drop {i} " * 900)[:900]


def test_kills_from_outside_fail_nobody_though_they_meet_one_alone_at_the_same_token_again_and_again(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_system(tmp_path, monkeypatch)
    kills = ";".join(f"kill@life={life},marker=40.41.42,after=3" for life in range(4))
    monkeypatch.setenv(faults.VARIABLE, kills)
    with serving(echo_config(tiny_path)) as server:
        body = {"prompt": [40, 41, 42], "max_tokens": 50, "ignore_eos": True}
        events = Stream(server, body).result()
        assert finishes(events) == ["length"] and server.metric("octavo_engine_restarts_total") == 4
        assert joined(events) == joined(server.stream("/v1/completions", body))


def test_a_start_that_hangs_is_a_clear_exit(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.VARIABLE, "slow@load=1,seconds=600")
    process, lines = spawn(_tiny(tiny_path, stuck=0.02))
    assert process.wait(60) == 1
    wait_until(lambda: any(line.startswith("Error: ") for line in lines), "the reason is printed")
    [error] = [line for line in lines if line.startswith("Error: ")]
    assert "nothing moved for" in error and "while it loaded" in error and "--stuck-seconds" in error


def test_an_engine_that_hangs_while_it_is_started_again_makes_way_for_the_next(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faults.VARIABLE, "kill@life=0,step=5;slow@life=1,load=1,seconds=600")
    monkeypatch.setattr(watch, "LOADING", 1.0)
    engine = replace(echo_config(tiny_path).engine, stuck_seconds=4.0)

    async def scenario() -> tuple[list[int], int]:
        client = AsyncEngineClient(engine, command=(sys.executable, "-m", ECHO))
        try:
            await client.start()
            params = SamplingParams(max_tokens=20, ignore_eos=True)
            request = NewRequest(request_id=client.new_id(), prompt=[40, 41], params=params, seed=0)
            return [token async for delta in client.generate(request) for token in delta.tokens], client.restarts
        finally:
            await client.close()

    assert asyncio.run(scenario()) == ([40, 41] * 10, 1)


def test_a_metrics_sink_that_raises_changes_no_answer(tiny_path: Path) -> None:
    body = {"prompt": "drop ", "max_tokens": 40, "ignore_eos": True, "stream_options": {"include_usage": True}}
    with serving(replace(echo_config(tiny_path), broken_metrics=True)) as server:
        events = server.stream("/v1/completions", body)
        assert finishes(events) == ["length"] and joined(events) == ("drop " * 40)[:40]
        assert events[-1]["usage"]["completion_tokens"] == 40
        assert server.complete(prompt="fine")["choices"][0]["text"] == "fine"
        assert server.client.get("/health").status_code == server.client.get("/metrics").status_code == 200
        assert server.metric("octavo_generated_tokens_total") == server.metric("octavo_engine_restarts_total") == 0
        told = [line for line in server.lines if "a metric could not be recorded" in line]
        assert len(told) == 1, "it is said, once a minute"


@pytest.mark.parametrize("state", ["loading", "running", "stuck"])
def test_no_child_is_left_a_second_after_the_server_was_killed(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    if state == "loading":
        monkeypatch.setenv(faults.VARIABLE, "slow@load=1,seconds=60")
        process, _ = spawn(_tiny(tiny_path))
        wait_until(lambda: any("octavo.engine" in _command(pid) for pid in children(process.pid)), "it loads")
        family = _family(process.pid)
        process.kill()
        wait_until(lambda: not any(map(alive, family)), "no child is left", 1.0)
        process.wait()
        return
    if state == "stuck":
        monkeypatch.setenv(faults.VARIABLE, "stuck@step=5,op=3")
    with serving(_tiny(tiny_path)) as server:
        server.chat("ab", max_tokens=1)
        Stream(server, {**BODY, "max_tokens": 4000})
        wait_until(lambda: server.metric("octavo_generated_tokens_total") > 2, "it answers")
        family = _family(server.process.pid)
        assert len(family) >= 2
        server.process.kill()
        wait_until(lambda: not any(map(alive, family)), "no child is left", 1.0)
        server.process.wait()


def _family(pid: int) -> list[int]:
    """Children of every thread."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_an_engine_that_cannot_start_again_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_hf(path, Tiny())
    with serving(_tiny(path)) as server:
        stream = Stream(server, {**BODY, "max_tokens": 4000})
        wait_until(lambda: server.metric("octavo_generated_tokens_total") > 0, "it answers")
        (path / "config.json").unlink()
        os.kill(server.engine_pid(), signal.SIGKILL)
        error = stream.result()[-1]["error"]["message"]
        assert error.startswith("the engine cannot start again: ") and "config.json" in error
        assert server.process.wait(20) == 1
        wait_until(lambda: f"Error: {error}" in server.lines, f"{error!r} is printed among {server.lines}")


@pytest.mark.parametrize("error_stream", ["/dev/full", "closed", "unread pipe"])
def test_a_log_that_cannot_be_written_stops_no_request(tiny_path: Path, error_stream: str) -> None:
    what = Serve(_tiny(tiny_path).engine, ServerConfig(port=0, access_log=True))
    redirect = {"/dev/full": "2>/dev/full", "closed": "2>&-", "unread pipe": ""}[error_stream]
    arguments = [sys.executable, "-m", "tests.support.serve", _json(what)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$0" "$@" {redirect}', *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("Serving at "))
        url = line.removeprefix("Serving at ").strip()
        with httpx.Client(timeout=30.0) as client:
            count = 700 if error_stream == "unread pipe" else 3  # a pipe holds 64 KiB
            for _ in range(count):
                assert client.get(f"{url}/models?{'x' * 100}").status_code == 200
            [engine] = [pid for pid in children(process.pid) if "--journal" in _command(pid)]
            os.kill(engine, signal.SIGSEGV)
            wait_until(lambda: not alive(engine), "the engine has ended")
            answer = client.post(f"{url}/completions", json={"prompt": "ab", "max_tokens": 3, "ignore_eos": True})
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(20)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    assert status == 0


def _json(what: Serve) -> str:
    return msgspec.json.encode(what).decode()


def test_a_fault_that_is_none_is_a_clear_exit(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.VARIABLE, "boom@step=1")
    process, lines = spawn(_tiny(tiny_path))
    assert process.wait(60) == 1
    wait_until(lambda: any(line.startswith("Error: OCTAVO_FAULTS: 'boom'") for line in lines), "the reason is printed")
    assert not json.dumps(lines).count("Traceback")
