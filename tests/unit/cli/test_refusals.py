"""What the command line refuses: one sentence that names the flag and a value that works, never a traceback."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli.chat import ServerSource
from octavo.config import ConfigError, ServerConfig
from octavo.models.checkpoint import open_checkpoint
from octavo.models.spec import ModelError
from octavo.models.tokenizer import load_tokenizer
from octavo.server.run import bind
from tests.support.tiny import Tiny, write_hf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf(tmp_path_factory.mktemp("models") / "tiny", Tiny(max_context=64)).path)


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--precision", "fp16"], "--precision"),
        (["serve", "--drain-seconds", "nan"], "--drain-seconds"),
        (["serve", "--block-size", "1000000000"], "--block-size 32 would work"),
        (["serve", ""], "MODEL is empty"),
        (["serve", "--name", ""], "--name"),
        (["serve", "--host", "256.1.1.1"], "--host 127.0.0.1 would work"),
        (["chat", "--url", "http://127.0.0.1:99999999"], "--url"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_flag_that_cannot_work_is_named_in_one_line(arguments: list[str], says: str) -> None:
    done = octavo(*arguments)
    assert done.returncode in (1, 2)
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["-p", "x " * 500], ["--no-chat", "-p", ""], ["--no-chat", "-p", "x", "--isa", "foo-emulated"]]
)
def test_a_run_that_cannot_be_answered_says_why_in_one_line(model: str, arguments: list[str]) -> None:
    done = octavo("run", model, "--kv-tokens", "64", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("octavo: --") and done.stderr.count("\n") == 1


def test_a_busy_port_is_told_before_the_default_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = octavo("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "--port 0 would" in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_directory_with_two_gguf_files_is_told_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"nothing")
    (tmp_path / "other.gguf").write_bytes(b"nothing")
    for read in (open_checkpoint, load_tokenizer):
        with pytest.raises(ModelError, match=r"2 models: other\.gguf, weights\.gguf; name the file of one"):
            read(tmp_path)


def test_doctor_exits_with_one_after_its_report_when_the_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"nothing")
    done = octavo("doctor", str(tmp_path))
    assert done.returncode == 1
    assert "REFUSED" in done.stdout and "weights.gguf" in done.stdout
    limits = done.stdout.partition("limits of one request")[2]
    assert "max_body_bytes" in limits and "drain_seconds" not in limits


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999999", "http://[::1", "ftp://host", "http://:80", "http://h:0"])
def test_an_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        ServerSource(url)


@pytest.mark.parametrize("host", ["256.1.1.1", "nosuchhost.invalid", "192.0.2.1", "", "a" * 70])
def test_a_host_that_is_not_ours_is_told_as_such(host: str) -> None:
    with pytest.raises(ConfigError, match=r"--host.*--host 127\.0\.0\.1 would work"):
        bind(ServerConfig(host=host, port=0))
