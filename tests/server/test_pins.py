"""Pins over HTTP and by the command, on a real server whose pool is small."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.cli.main import cli
from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from octavo.server.cache_admin import PATH, shared_beginning
from tests.support.serve import Serve
from tests.support.server import Server, serving, wait_until

POOL, BUDGET = 1024, 256
KEY = "administrator-key-of-the-tests"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "admin"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def pinned(tiny_path: Path, key_file: Path) -> Iterator[Server]:
    engine = EngineConfig(
        model=ModelConfig(path=str(tiny_path), name="tiny"),
        kv=KVConfig(size_tokens=POOL, pin_tokens=BUDGET),
        validate_kv=True,
    )
    with serving(Serve(engine, ServerConfig(port=0, admin_key_file=str(key_file)))) as server:
        server.client.headers["authorization"] = f"Bearer {KEY}"
        yield server


def _ids(seed: int, length: int) -> list[int]:
    return [(seed * 37 + i * 11) % 250 + 3 for i in range(length)]


def _cached(server: Server, prompt: Any, **fields: Any) -> int:
    body = server.complete(prompt=prompt, max_tokens=1, **fields)
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


def _flood(server: Server) -> None:
    for number in range(8):
        server.complete(prompt=_ids(1000 + number, 400), max_tokens=1)


def _pins(server: Server) -> list[str]:
    return [pin["name"] for pin in server.client.get(PATH).json()["pins"]]


def test_a_pin_is_computed_kept_listed_and_ended(pinned: Server) -> None:
    prompt = _ids(1, 100)
    body = pinned.post(PATH, {"name": "p", "prompt": prompt, "ttl_seconds": 600}).json()
    assert (body["pinned_tokens"], body["budget_tokens"]) == (96, BUDGET)
    _flood(pinned)
    assert _cached(pinned, [*prompt, 5]) == 96
    assert _pins(pinned) == ["p"]
    assert pinned.client.delete(f"{PATH}/p").status_code == 200
    _flood(pinned)
    assert _cached(pinned, [*prompt, 5]) == 0
    assert pinned.client.delete(f"{PATH}/p").status_code == 404


def test_a_pin_ends_by_itself(pinned: Server) -> None:
    assert pinned.post(PATH, {"name": "short", "prompt": _ids(2, 64), "ttl_seconds": 0.05}).status_code == 200
    wait_until(lambda: _pins(pinned) == [], "the pin has ended")
    wait_until(pinned.idle, "its blocks are back")


def test_messages_stand_for_what_every_such_conversation_begins_with(pinned: Server) -> None:
    system = {"role": "system", "content": "Answer in the words of a sailor, and be kind. " * 4}
    body = pinned.post(PATH, {"name": "sailor", "messages": [system]}).json()
    _flood(pinned)
    first, second = (
        pinned.post("/v1/chat/completions", {"messages": [system, {"role": "user", "content": text}], "max_tokens": 1})
        for text in ("What is a knot?", "Where is the mast? I cannot find it.")
    )
    cached = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, second)]
    assert cached[0] == body["pinned_tokens"] >= 32
    assert cached[1] >= body["pinned_tokens"]
    pinned.client.delete(f"{PATH}/sailor")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"name": "p"}, "prompt or messages"),
        ({"name": "p", "prompt": [5], "messages": []}, "not both"),
        ({"name": "a b", "prompt": [5]}, "name"),
        ({"name": "p", "prompt": [5] * 64, "ttl_seconds": 0}, "ttl_seconds"),
        ({"name": "p", "prompt": [5] * 64, "ttl_seconds": 1e9}, "ttl_seconds"),
        ({"name": "p", "prompt": [5] * 8}, "32"),
        ({"name": "p", "prompt": [5] * 400}, "--pin-tokens"),
        ({"name": "p", "prompt": [5] * 64, "what": 1}, "what"),
        ({"name": "p", "prompt": [99999]}, "id"),
        ({"name": "p", "prompt": [5] * 64, "cache_salt": "s" * 257}, "cache_salt"),
    ],
)
def test_what_is_wrong_with_a_pin_is_told(pinned: Server, body: dict[str, Any], word: str) -> None:
    answer = pinned.post(PATH, body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and word in error["message"], answer.text
    assert error["param"] or error["code"] == "pin_refused"
    assert _pins(pinned) == []


def test_without_the_administrators_key_nothing_is_pinned_or_told(pinned: Server, tiny: Server) -> None:
    answer = pinned.client.get(PATH, headers={"authorization": "Bearer something else, of some length"})
    assert answer.status_code == 401
    assert tiny.post(PATH, {"name": "p", "prompt": [5] * 64}).status_code == 403, "off without --admin-key-file"


def test_the_command_pins_lists_and_unpins(pinned: Server, key_file: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["cache", "--url", pinned.url, "--key-file", str(key_file), *arguments])
        return result.exit_code, result.output if result.exception is None else str(result.exception)

    status, output = run(
        "pin", "cli", "--text", "a longer text that fills some blocks of the cache. " * 3, "--ttl", "60"
    )
    assert status == 0 and "cli" in output
    assert _pins(pinned) == ["cli"]
    assert "60 s left" in run("list")[1] or "59 s left" in run("list")[1]
    assert run("unpin", "cli")[0] == 0
    assert "no pin" in run("unpin", "cli")[1]
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "system", "content": "be brief " * 20}]))
    assert run("pin", "file", "--messages", str(messages))[0] == 0
    assert run("unpin", "file")[0] == 0
    assert "one of --text" in run("pin", "none")[1]


def test_the_shared_beginning_of_two_prompts() -> None:
    assert shared_beginning([1, 2, 3], [1, 2, 4, 5]) == [1, 2]
    assert shared_beginning([1, 2], [1, 2, 3]) == [1, 2]
    assert shared_beginning([], [1]) == []


def test_pins_outlive_their_engine(pinned: Server) -> None:
    prompts = {"first": _ids(9, 64), "second": _ids(10, 96)}
    for name, prompt in prompts.items():
        assert pinned.post(PATH, {"name": name, "prompt": prompt, "ttl_seconds": 600}).status_code == 200
    assert pinned.post(PATH, {"name": "gone", "prompt": _ids(11, 64)}).status_code == 200
    assert pinned.client.delete(f"{PATH}/gone").status_code == 200
    os.kill(pinned.engine_pid(), signal.SIGKILL)
    wait_until(lambda: pinned.client.get(PATH).status_code == 503, "the engine is lost")

    def pinned_tokens() -> int:
        answer = pinned.client.get(PATH)
        if answer.status_code == 200:
            assert [pin["name"] for pin in answer.json()["pins"]] == list(prompts), "one that is to come is listed"
        return int(answer.json().get("pinned_tokens", 0))

    wait_until(lambda: pinned_tokens() == 160, "both are pinned again")
    _flood(pinned)
    for prompt in prompts.values():
        assert _cached(pinned, [*prompt, 5]) == len(prompt)
    left = pinned.client.get(PATH).json()["pins"][0]["seconds_left"]
    assert 0 < left < 600
    for name in prompts:
        assert pinned.client.delete(f"{PATH}/{name}").status_code == 200
    assert _pins(pinned) == []


def test_a_pin_that_is_being_made_again_can_be_ended_or_replaced(pinned: Server) -> None:
    for number in range(3):
        body = {"name": f"p{number}", "prompt": _ids(20 + number, 64), "ttl_seconds": 600}
        assert pinned.post(PATH, body).status_code == 200
    os.kill(pinned.engine_pid(), signal.SIGKILL)
    wait_until(lambda: pinned.client.delete(f"{PATH}/p2").status_code == 200, "it is ended as soon as can be")
    other = pinned.post(PATH, {"name": "p1", "prompt": _ids(30, 96), "ttl_seconds": 600})
    assert other.status_code == 200
    wait_until(lambda: pinned.client.get(PATH).json()["pinned_tokens"] == 160, "the first, and the new second")
    assert sorted(_pins(pinned)) == ["p0", "p1"]
    _flood(pinned)
    assert _cached(pinned, [*_ids(30, 96), 5]) == 96
    for name in ("p0", "p1"):
        assert pinned.client.delete(f"{PATH}/{name}").status_code == 200
