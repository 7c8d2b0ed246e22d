"""A server whose model is still to be downloaded: it answers from the first moment, and never hangs."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from tests.support.hub import FakeHub, fake_hub
from tests.support.serve import Serve
from tests.support.server import spawn, wait_until

WHAT = Serve(EngineConfig(model=ModelConfig(path="org/tiny"), kv=KVConfig(size_tokens=2048)), ServerConfig(port=0))


@pytest.fixture
def hub(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        hub.add_folder("org/tiny", tiny_path)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
        yield hub


def announced(process: subprocess.Popen[str], lines: list[str]) -> str:
    """The address, which is said before anything is fetched."""
    pattern = re.compile(r"it will serve at (http://\S+)")
    wait_until(lambda: process.poll() is not None or any(map(pattern.search, lines)), "the address is told", 60)
    return next(found[1] for line in lines if (found := pattern.search(line)))


def test_requests_are_told_of_the_download_and_answered_after_it(hub: FakeHub) -> None:
    hub.stall.set()
    process, lines = spawn(WHAT)
    try:
        url = announced(process, lines)
        assert hub.half_way.wait(60)
        with httpx.Client(base_url=url, timeout=30) as client:
            ready = client.get("/ready")
            assert ready.status_code == 503 and ready.json()["status"] == "starting"
            assert "Downloading org/tiny" in ready.json()["message"]
            refused = client.post("/v1/completions", json={"prompt": "a"})
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert "Downloading org/tiny" in refused.json()["error"]["message"]
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models").json()["data"] == []
            hub.stall.clear()
            wait_until(lambda: client.get("/ready").status_code == 200, "the model is served", 60)
            assert client.get("/v1/models").json()["data"][0]["id"] == "org/tiny"
            answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
            assert answer.status_code == 200, answer.text
    finally:
        hub.stall.clear()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, "\n".join(lines)


def test_a_signal_ends_a_download_at_once(hub: FakeHub) -> None:
    hub.stall.set()
    process, lines = spawn(WHAT)
    announced(process, lines)
    assert hub.half_way.wait(60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0, "\n".join(lines)
    assert not any("Traceback" in line for line in lines), lines


def test_a_download_that_fails_ends_the_server_with_its_reason(hub: FakeHub) -> None:
    hub.repos.clear()
    process, lines = spawn(WHAT)
    assert process.wait(60) == 1
    wait_until(lambda: any(line.startswith("Error: there is no model org/tiny") for line in lines), "the reason")
    assert not any("Traceback" in line for line in lines), lines
