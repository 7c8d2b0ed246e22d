"""`octavo chat` as a process: refusals, half answers and broken input are told, and the conversation goes on."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ROOT
from tests.support.tiny import Tiny, write_hf

END = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]"]
SECONDS = 60


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}


class Peer(ThreadingHTTPServer):
    """A server that answers the n-th chat as it was told to, and keeps what it was asked."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = list(answers)
        self.asked: list[list[dict[str, str]]] = []


class Handler(BaseHTTPRequestHandler):
    """One answer: a status with an error, or events that may break off."""

    server: Peer

    def do_GET(self) -> None:
        self.send(200, json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body["messages"])
        answer = self.server.answers.pop(0)
        if isinstance(answer, int):
            self.send(answer, json.dumps({"error": {"message": f"no, {answer}"}}).encode())
            return
        lines = [event if isinstance(event, str) else json.dumps(event) for event in answer]
        self.send(200, "".join(f"data: {line}\n\n" for line in lines).encode())

    def send(self, status: int, body: bytes) -> None:
        """Without a length, so that the end of the connection is the end of the body."""
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""


@contextmanager
def peer(*answers: Any) -> Iterator[tuple[Peer, str]]:
    with Peer(list(answers)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def chat(lines: bytes, *flags: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "octavo.cli.main", "chat", *flags],
        input=lines,
        capture_output=True,
        timeout=SECONDS,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (400, b"no, 400"),
        (503, b"no, 503"),
        ([text("half")], b"cut off"),
        ([], b"cut off"),
        ([text("half"), {"error": {"message": "engine died"}}, "[DONE]"], b"engine died"),
        (["{nonsense"], b"none of a chat"),
        (['{"choices": [5]}'], b"none of a chat"),
    ],
    ids=str,
)
def test_a_turn_without_a_whole_answer_is_told_and_dropped(broken: Any, says: bytes) -> None:
    with peer([text("one"), *END], broken, [text("two"), *END]) as (server, url):
        done = chat(b"a\nb\nc\n", "--url", url)
    assert done.returncode == 1
    assert done.stderr.startswith(b"octavo: ") and says in done.stderr and done.stderr.count(b"\n") == 1
    assert b"one\n" in done.stdout and done.stdout.endswith(b"two\n")
    turns = [(turn["role"], turn["content"]) for turn in server.asked[2]]
    assert turns == [("user", "a"), ("assistant", "one"), ("user", "c")]


@pytest.mark.parametrize("events", [[text("yes"), *END], [text("yes"), END[0]], [text("yes"), "[DONE]"]])
def test_a_whole_answer_is_a_success(events: list[Any]) -> None:
    with peer(events) as (_, url):
        done = chat(b"a\n", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"yes\n", b"")


def test_a_line_that_is_not_utf8_is_told_and_the_next_one_answered() -> None:
    with peer([text("yes"), *END]) as (server, url):
        done = chat(b"caf\xe9\nok\n", "--url", url)
    assert (done.returncode, done.stdout) == (1, b"yes\n")
    assert b"UTF-8" in done.stderr
    assert server.asked == [[{"role": "user", "content": "ok"}]]


def test_a_server_that_is_not_there_is_told() -> None:
    with peer() as (_, url):
        pass
    done = chat(b"a\n", "--url", url)
    assert done.returncode == 1
    assert b"does not answer" in done.stderr and b"Traceback" not in done.stderr


def test_at_a_terminal_a_refusal_only_prompts_again() -> None:
    ours, theirs = pty.openpty()
    with peer(400, [text("yes"), *END]) as (server, url), open(ours, "wb", buffering=0) as keys:
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo.cli.main", "chat", "--url", url],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        os.close(theirs)
        keys.write(b"a\nb\n/exit\n")
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert b"yes" in out and b"no, 400" in err
    assert server.asked[1] == [{"role": "user", "content": "b"}]


def test_an_engine_of_its_own_reports_and_survives_a_message_too_long(tmp_path: Path) -> None:
    model = str(write_hf(tmp_path / "tiny", Tiny(max_context=256)).path)
    done = chat(b"hi\n" + b"x" * 4000 + b"\n/reset\nhi\n", model, "--max-tokens", "4", "--temperature", "0")
    assert done.returncode == 1
    assert b"kernels" in done.stderr
    assert b"octavo: the prompt has" in done.stderr and b"Traceback" not in done.stderr
    answer = len(done.stdout) // 2
    assert answer and done.stdout[:answer] == done.stdout[answer:]
