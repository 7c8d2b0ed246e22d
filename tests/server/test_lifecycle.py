"""The processes: start, drain, a second signal, the death of either side, a start that fails."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from tests.server.test_streams import finishes, joined
from tests.support.echo_engine import DIE
from tests.support.serve import Serve
from tests.support.server import Server, alive, children, echo_config, serving, spawn, wait_until
from tests.support.system import make_system

LONG = {"prompt": "abcdefgh", "max_tokens": 8000, "ignore_eos": True}


class Stream(threading.Thread):
    """A stream that is read in the background."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._body = body
        self.events: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.events = self._server.stream("/v1/completions", self._body)
        except BaseException as error:
            self.error = error

    def result(self) -> list[dict[str, Any]]:
        self.join(30)
        assert not self.is_alive(), "the stream does not end"
        if self.error is not None:
            raise self.error
        return self.events


def started(server: Server, count: int) -> None:
    wait_until(lambda: server.metric("octavo_requests_running") == count, f"{count} are running")


def test_a_signal_lets_open_requests_finish_and_refuses_new_ones(tiny_path: Path) -> None:
    with serving(echo_config(tiny_path)) as server:
        stream = Stream(server, {"prompt": "drop", "max_tokens": 500, "ignore_eos": True})
        started(server, 1)
        family = children(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        events = stream.result()
        assert finishes(events) == ["length"] and len(joined(events)) == 500
        assert server.process.wait(20) == 0
        assert len(family) >= 1 and not any(map(alive, family))


def test_a_signal_while_the_model_loads_ends_all_processes(tiny_path: Path) -> None:
    process, lines = spawn(echo_config(tiny_path))
    wait_until(lambda: len(children(process.pid)) > 0, "the engine has been spawned")
    started_children = children(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0, "\n".join(lines)
    wait_until(lambda: not any(map(alive, started_children)), "no child is left")


def test_requests_that_outlast_the_drain_are_ended_with_a_reason(tiny_path: Path) -> None:
    what = echo_config(tiny_path, max_model_len=8192)
    with serving(Serve(what.engine, ServerConfig(port=0, drain_seconds=0.2), what.module)) as server:
        stream = Stream(server, LONG)
        started(server, 1)
        server.process.send_signal(signal.SIGTERM)
        assert "shutting down" in stream.result()[-1]["error"]["message"]
        assert server.process.wait(20) == 0


def test_a_second_signal_ends_everything_at_once(tiny_path: Path) -> None:
    with serving(echo_config(tiny_path, max_model_len=8192)) as server:
        stream = Stream(server, LONG)
        started(server, 1)
        engine = server.engine_pid()
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: not _accepts(server), "no new connections are taken")
        wait_until(
            lambda: any("Draining 1 request, up to 30 s; a second" in line for line in server.lines), "it is told"
        )
        heard = len(server.lines)
        wait_until(lambda: _signalled_out(server), "the process has ended", 10)
        wait_until(lambda: not alive(engine), "the engine has ended")
        stream.join(10)
        assert not stream.is_alive()
        assert server.lines[heard:] == []


def test_an_upload_that_outlasts_the_drain_is_ended_without_a_traceback(tiny_path: Path) -> None:
    what = echo_config(tiny_path)
    with serving(Serve(what.engine, ServerConfig(port=0, drain_seconds=0.2), what.module)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n"
            )
            assert b" 100 " in connection.recv(1000)
            server.process.send_signal(signal.SIGTERM)
            assert b" 503 " in connection.recv(1000)
        assert server.process.wait(20) == 0
        assert any("Draining 1 request," in line for line in server.lines)
        assert not any("Traceback" in line for line in server.lines)


def _signalled_out(server: Server) -> bool:
    """Signals until the process is gone: what follows the first at once counts as the same one."""
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGINT)
    return server.process.poll() is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sent_twice_at_once_ends_an_idle_server_quietly(tiny_path: Path, number: signal.Signals) -> None:
    with serving(echo_config(tiny_path)) as server:
        server.process.send_signal(number)
        server.process.send_signal(number)
        assert server.process.wait(20) == 0
        wait_until(lambda: "Stopping" in server.lines[-1], "the end is told")


def test_a_chat_is_rendered_although_the_templates_worker_was_killed(tiny_path: Path) -> None:
    with serving(echo_config(tiny_path)) as server:
        before = server.chat("ab")
        for pid in children(server.process.pid):
            if "octavo.server.template_worker" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
        assert server.chat("ab")["choices"] == before["choices"]


def _accepts(server: Server) -> bool:
    host, port = server.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def test_the_engine_ends_when_its_server_is_killed(tiny_path: Path) -> None:
    with serving(echo_config(tiny_path, max_model_len=8192)) as server:
        Stream(server, LONG)
        started(server, 1)
        engine = server.engine_pid()
        server.process.kill()
        wait_until(lambda: not alive(engine), "the engine has ended", 5.0)
        server.process.wait()


def test_streams_go_on_as_if_nothing_had_happened_when_the_engine_is_killed(tiny_path: Path) -> None:
    engine = EngineConfig(
        model=ModelConfig(path=str(tiny_path), name="tiny"), kv=KVConfig(size_tokens=8192), validate_kv=True
    )
    body = {
        "prompt": "the world",
        "max_tokens": 150,
        "ignore_eos": True,
        "temperature": 1.5,
        "seed": 11,
        "frequency_penalty": 0.5,
        "logprobs": 1,
        "stream_options": {"include_usage": True},
    }
    with serving(Serve(engine, ServerConfig(port=0))) as server:
        calm = server.stream("/v1/completions", body)
        stream = Stream(server, body)
        before = server.metric("octavo_generated_tokens_total")
        wait_until(lambda: server.metric("octavo_generated_tokens_total") > before + 3, "tokens have come")
        os.kill(server.engine_pid(), signal.SIGKILL)
        events = stream.result()
        assert server.metric("octavo_engine_restarts_total") == 1
        assert joined(events) == joined(calm)
        assert _logprobs(events) == _logprobs(calm)
        assert {**events[-1]["usage"], "prompt_tokens_details": None} == {
            **calm[-1]["usage"],
            "prompt_tokens_details": None,
        }
        assert server.metric("octavo_generated_tokens_total") >= before
        assert server.client.get("/ready").status_code == 200


def _logprobs(events: list[dict[str, Any]]) -> list[float]:
    return [
        value
        for event in events
        for choice in event["choices"]
        if choice["logprobs"]
        for value in choice["logprobs"]["token_logprobs"]
    ]


def test_a_request_that_takes_all_memory_of_every_engine_is_failed_and_the_others_finish(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_system(tmp_path, monkeypatch)
    with serving(echo_config(tiny_path)) as server:
        others = [Stream(server, {"prompt": f"drop {i} ", "max_tokens": 900, "ignore_eos": True}) for i in range(3)]
        started(server, 3)
        poison = Stream(server, {"prompt": [DIE, 3, 10, 11, 12], "max_tokens": 50, "ignore_eos": True})
        assert "died 2 times with this request alone" in poison.result()[-1]["error"]["message"]
        for i, other in enumerate(others):
            events = other.result()
            assert finishes(events) == ["length"]
            assert joined(events) == (f"drop {i} " * 900)[:900]
        wait_until(lambda: server.client.get("/ready").status_code == 200, "the engine is back")
        assert server.complete(prompt="fine")["choices"][0]["text"] == "fine"
        assert 3 <= server.metric("octavo_engine_restarts_total") <= 6


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (EngineConfig(model=ModelConfig(path="/nowhere/model.gguf")), "does not exist"),
        (EngineConfig(kv=KVConfig(size_tokens=1)), "--kv-tokens"),
    ],
)
def test_a_start_that_fails_says_why_in_one_line(tiny_path: Path, engine: EngineConfig, says: str) -> None:
    if not engine.model.path:
        engine = EngineConfig(model=ModelConfig(path=str(tiny_path)), kv=engine.kv)
    process, lines = spawn(Serve(engine))
    assert process.wait(60) == 1
    wait_until(lambda: any(line.startswith("Error: ") for line in lines), "the reason is printed")
    errors = [line for line in lines if line.startswith("Error: ")]
    assert len(errors) == 1 and says in errors[0]
    assert not any("Traceback" in line for line in lines)


def test_a_busy_port_is_told_before_the_model_loads(tiny_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        what = echo_config(tiny_path)
        began = time.monotonic()
        process, lines = spawn(Serve(what.engine, ServerConfig(port=taken.getsockname()[1]), what.module))
        assert process.wait(30) == 1
        assert time.monotonic() - began < 20
    wait_until(lambda: any("--port" in line for line in lines), "the flag is named")
    assert len(lines) == 1
