"""Who gets in: keys and their limits, admin paths, names that the server is called by, pages of other origins."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.config import ServerConfig
from tests.server.test_disconnects import LONG
from tests.support.serve import Serve
from tests.support.server import Server, echo_config, serving, wait_until

ALICE, BOB, ADMIN, NEW = (f"{name}-key-of-some-length" for name in ("alice", "bob", "admin", "new"))
KEYS = f"""
[alice]
key = "{ALICE}"
[bob]
sha256 = "{hashlib.sha256(BOB.encode()).hexdigest()}"
requests_per_minute = 6
max_concurrent = 2
tokens_per_minute = 40
"""
PROMPT = {"prompt": "abc", "max_tokens": 2}
ORIGIN = "https://app.example"


@dataclass
class Guarded:
    """A server with keys, and their file."""

    server: Server
    keys: Path

    def post(self, key: str | None, body: dict[str, Any] = PROMPT, **headers: str) -> httpx.Response:
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        return self.server.client.post("/v1/completions", json=body, headers=headers)

    def reload(self, text: str, said: str) -> None:
        """Writes the file and has it read; waits for what the log says of it."""
        before = len(self.server.lines)
        part = self.keys.with_suffix(".part")
        part.write_text(text)
        part.chmod(0o600)
        part.replace(self.keys)
        self.server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any(said in line for line in self.server.lines[before:]), f"the log says {said!r}")


@pytest.fixture(scope="module")
def guarded(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("keys")
    for name, text in (("keys", KEYS), ("admin", ADMIN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    what = echo_config(tiny_path, max_model_len=8192)
    config = ServerConfig(
        port=0,
        api_keys=str(folder / "keys"),
        admin_key_file=str(folder / "admin"),
        cors_origin=(ORIGIN,),
        request_templates=True,
    )
    with serving(Serve(what.engine, config, what.module)) as server:
        yield Guarded(server, folder / "keys")


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert len(response.content) < 1024 and response.headers["x-request-id"]
    body: dict[str, Any] = response.json()["error"]
    return body


@pytest.mark.parametrize("given", [None, "wrong-key-of-some-length", ALICE[:-1], ALICE + "x", BOB[:8] + "\xe9"])
def test_without_a_key_nothing_is_answered(guarded: Guarded, given: str | None) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/nothing", "/"):
        headers = {} if given is None else {"authorization": f"Bearer {given}".encode("latin-1")}
        response = guarded.server.client.get(path, headers=headers)
        assert error(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("scheme", ["Basic", "bearer2", ""])
def test_other_schemes_are_no_key(guarded: Guarded, scheme: str) -> None:
    response = guarded.server.client.get("/v1/models", headers={"authorization": f"{scheme} {ALICE}".strip()})
    error(response, 401)


def test_two_keys_in_one_request_are_refused(guarded: Guarded) -> None:
    headers = [("authorization", f"Bearer {ALICE}"), ("authorization", "Bearer wrong")]
    response = guarded.server.client.get("/v1/models", headers=headers)
    assert error(response, 400)["code"] == "duplicate_header"


def test_a_key_lets_in_and_probes_need_none(guarded: Guarded) -> None:
    assert guarded.post(ALICE).status_code == 200
    for path in ("/health", "/ready", "/openapi.json"):
        assert guarded.server.client.get(path).status_code == 200


def test_admin_paths_take_the_admin_key_alone(guarded: Guarded) -> None:
    client = guarded.server.client
    for path in ("/metrics", "/admin", "/admin/anything"):
        error(client.get(path), 401)
        error(client.get(path, headers={"authorization": f"Bearer {ALICE}"}), 401)
    admin = {"authorization": f"Bearer {ADMIN}"}
    assert client.get("/metrics", headers=admin).status_code == 200
    error(client.get("/admin/nothing", headers=admin), 404)
    error(client.get("/v1/models", headers=admin), 401)


def test_admin_paths_are_off_without_an_admin_key(echo: Server) -> None:
    assert error(echo.client.get("/admin/anything"), 403)["code"] == "admin_off"
    assert echo.client.get("/metrics").status_code == 200


def test_a_keys_own_limits_hold_and_others_are_not_touched(guarded: Guarded) -> None:
    """Six requests a minute in all, two answers at once, forty tokens a minute."""
    assert error(guarded.post(BOB, {**PROMPT, "n": 3}), 400)["param"] == "n"
    assert guarded.post(BOB, {"prompt": "abcdefgh", "max_tokens": 30, "ignore_eos": True, "n": 2}).status_code == 200
    refused = guarded.post(BOB)
    assert error(refused, 429)["code"] == "rate_limit_exceeded"
    assert "tokens a minute" in error(refused, 429)["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    for _ in range(3):
        error(guarded.post(BOB), 429)
    assert "requests a minute" in error(guarded.post(BOB), 429)["message"]
    assert guarded.post(ALICE).status_code == 200


def test_keys_are_read_again_at_sighup_and_a_wrong_file_changes_nothing(guarded: Guarded) -> None:
    error(guarded.post(NEW), 401)
    held = threading.Event()
    ended: list[str] = []

    def stream() -> None:
        body = {**LONG, "max_tokens": 3000, "stream": True}
        with guarded.server.client.stream(
            "POST", "/v1/completions", json=body, headers={"authorization": f"Bearer {ALICE}"}
        ) as response:
            for line in response.iter_lines():
                held.set()
                ended.append(line)

    reader = threading.Thread(target=stream)
    reader.start()
    assert held.wait(20)
    guarded.reload(f'[new]\nkey = "{NEW}"\n', "Read again: API and admin keys")
    assert guarded.post(NEW).status_code == 200
    error(guarded.post(ALICE), 401)
    guarded.reload("[new", "stay as they were")
    assert guarded.post(NEW).status_code == 200
    guarded.reload(KEYS + f'[new]\nkey = "{NEW}"\n', "Read again: API and admin keys")
    assert guarded.post(ALICE).status_code == 200
    reader.join(60)
    assert [line for line in ended if line][-1] == "data: [DONE]"  # open answers of a key that is gone go on
    assert not any(secret in line for line in guarded.server.lines for secret in (ALICE, BOB, NEW, ADMIN))


# --- names and origins ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "[::1", "a.b"]
)
def test_names_that_strangers_could_point_here_are_refused(echo: Server, host: str) -> None:
    assert error(echo.client.get("/v1/models", headers={"host": host}), 403)["code"] == "host"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]:80", "10.0.0.7:80", "octavo", "a.localhost"]
)
def test_addresses_and_names_of_this_machine_are_answered(echo: Server, host: str) -> None:
    assert echo.client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example"])
def test_web_pages_of_other_origins_are_refused(echo: Server, origin: str) -> None:
    response = echo.client.post(
        "/v1/completions", json=PROMPT, headers={"origin": origin, "content-type": "text/plain"}
    )
    assert error(response, 403)["code"] == "origin"
    assert "access-control-allow-origin" not in response.headers


def test_the_servers_own_pages_are_answered(echo: Server) -> None:
    response = echo.client.post("/v1/completions", json=PROMPT, headers={"origin": echo.url})
    assert response.status_code == 200 and "access-control-allow-origin" not in response.headers


def test_pages_of_an_origin_that_is_let_in_can_ask_and_read(guarded: Guarded) -> None:
    asks = {"origin": ORIGIN, "access-control-request-method": "POST"}
    preflight = guarded.server.client.options("/v1/completions", headers=asks)
    assert preflight.status_code == 204 and preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    answer = guarded.post(ALICE, origin=ORIGIN)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["vary"] == "origin"
    refused = guarded.post(None, origin=ORIGIN)
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == ORIGIN
    error(guarded.post(ALICE, origin="https://evil.example"), 403)


def test_templates_of_requests_are_refused_unless_they_are_let_in(echo: Server, guarded: Guarded) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template": "{{ messages[0].content }}",
        "max_tokens": 2,
    }
    refused = error(echo.post("/v1/chat/completions", body), 400)
    assert refused["param"] == "chat_template" and "--request-templates" in refused["message"]
    own = {"authorization": f"Bearer {ALICE}"}

    def ask(template: str) -> httpx.Response:
        return guarded.server.client.post("/v1/chat/completions", json={**body, "chat_template": template}, headers=own)

    for number in range(6):  # more than are kept
        answer = ask("{{ messages[0].content }}" + "x" * number)
        assert answer.json()["choices"][0]["message"]["content"] == "hi", answer.text
        assert answer.json()["usage"]["prompt_tokens"] == 2 + number
    for hostile in (
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 'A' * 10**9 }}",
        "{{",
        "%",
    ):
        answer = ask(hostile)
        assert answer.status_code in (200, 400) and len(answer.content) < 1024, answer.text
        assert "class" not in answer.text.replace("__class__", "")
    assert error(ask("{{ ''.__class__.__mro__[1].__subclasses__() }}"), 400)["code"] == "chat_template_error"


def test_nothing_that_users_write_reaches_the_log(guarded: Guarded) -> None:
    mark = "mark-of-a-prompt-0815"
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": mark}]}
    bodies: list[dict[str, Any]] = [
        {"prompt": mark}, {"prompt": mark, "n": -1}, {"prompt": mark, mark: 1}, {"prompt": [mark, 5]}, chat,
        {**chat, "model": mark}, {**chat, "stop": [mark] * 50}, {"messages": [{"role": mark, "content": mark}]},
    ]  # fmt: skip
    for body in bodies:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        guarded.server.client.post(path, json=body, headers={"authorization": f"Bearer {ALICE}", "x-request-id": "r"})
    assert not any(mark in line for line in guarded.server.lines)
