"""A full queue, a slow queue and a deadline at a real server: the right status, at once, and nothing left behind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.support.server import Server, echo_config, serving, wait_until

LONG = {"prompt": "abcdefgh", "max_tokens": 6000, "ignore_eos": True}


@pytest.fixture(scope="module")
def narrow(tiny_path: Path) -> Iterator[Server]:
    """One request runs and two wait."""
    what = echo_config(
        tiny_path,
        max_model_len=8000,
        max_num_seqs=1,
        max_queue_requests=2,
        max_queue_tokens=400,
        order="priority",
        max_queue_seconds=1.2,
    )
    what = replace(what, server=replace(what.server, tenant_header="X-Tenant"))
    with serving(what) as server:
        yield server


class Crowd:
    """Requests in threads of their own."""

    def __init__(self, server: Server, *bodies: dict[str, object]) -> None:
        self.responses: list[httpx.Response] = []
        self._threads = [threading.Thread(target=self._post, args=(server, body)) for body in bodies]
        for thread in self._threads:
            thread.start()

    def _post(self, server: Server, body: dict[str, object]) -> None:
        self.responses.append(httpx.post(server.url + "/v1/completions", json=body, timeout=30))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()


def _busy(server: Server, waiting: int) -> None:
    wait_until(lambda: server.metric("octavo_requests_running") == 1, "one runs")
    wait_until(lambda: server.metric("octavo_requests_waiting") == waiting, "the others wait")


def test_a_full_queue_is_told_at_once_and_the_server_goes_on(narrow: Server) -> None:
    quick = {**LONG, "deadline_ms": 1500}
    with Crowd(narrow, quick, quick, quick):
        _busy(narrow, 2)
        times = []
        for _ in range(5):
            began = time.monotonic()
            refused = narrow.post("/v1/completions", LONG)
            times.append(time.monotonic() - began)
            assert refused.status_code == 429, refused.text
            assert refused.json()["error"]["code"] == "queue_full"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert narrow.client.get("/ready").json()["status"] == "full"
    print(f"429 in {min(times) * 1e3:.1f} to {max(times) * 1e3:.1f} ms")
    wait_until(narrow.idle, "all is free")
    assert narrow.complete(prompt="abc", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_prompts_beyond_the_queues_tokens_are_refused(narrow: Server) -> None:
    with Crowd(narrow, {**LONG, "deadline_ms": 2000}):
        _busy(narrow, 0)
        with Crowd(narrow, {**LONG, "prompt": [70] * 300}):
            _busy(narrow, 1)
            refused = narrow.post("/v1/completions", {**LONG, "prompt": [70] * 200})
            assert refused.status_code == 429 and "--max-queue-tokens" in refused.json()["error"]["message"]
    wait_until(narrow.idle, "all is free")


def test_a_deadline_ends_a_request_with_504(narrow: Server) -> None:
    late = narrow.post("/v1/completions", {**LONG, "deadline_ms": 100})
    assert late.status_code == 504 and late.json()["error"]["code"] == "deadline_exceeded"
    events = narrow.client.post("/v1/completions", json={**LONG, "deadline_ms": 100, "stream": True}).text
    assert events.endswith("data: [DONE]\n\n")
    failed = [json.loads(line[6:]) for line in events.splitlines() if '"error"' in line]
    assert [event["error"]["code"] for event in failed] == ["deadline_exceeded"]
    wait_until(narrow.idle, "all is free")


def test_a_request_that_waits_too_long_is_ended_with_503(narrow: Server) -> None:
    with Crowd(narrow, {**LONG, "deadline_ms": 2500}):
        _busy(narrow, 0)
        late = narrow.post("/v1/completions", LONG)
        assert late.status_code == 503 and late.json()["error"]["code"] == "queue_timeout", late.text
        assert "retry-after" in late.headers
    wait_until(narrow.idle, "all is free")


def test_a_more_urgent_request_takes_the_place(narrow: Server) -> None:
    with Crowd(narrow, {**LONG, "max_tokens": 900, "priority": 1}) as crowd:
        _busy(narrow, 0)
        answer = narrow.complete(prompt="abc", max_tokens=3, priority=-1)
        assert answer["usage"]["completion_tokens"] == 3
        assert not crowd.responses, "the other one is not done yet"
    assert crowd.responses[0].json()["usage"]["completion_tokens"] == 900
    assert narrow.metric("octavo_preemptions_total") >= 1


def test_priority_without_its_flag_is_refused_by_name(echo: Server) -> None:
    refused = echo.post("/v1/completions", {"prompt": "ab", "priority": 1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"
    assert echo.complete(prompt="ab", priority=0)["choices"]
    for field, value in (("priority", 9), ("deadline_ms", 0)):
        assert echo.post("/v1/completions", {"prompt": "ab", field: value}).status_code == 400


def test_tenants_share_no_cached_prefix(narrow: Server) -> None:
    def cached(tenant: str) -> int:
        body = {"prompt": [80] * 70, "max_tokens": 1}
        response = narrow.client.post("/v1/completions", json=body, headers={"x-tenant": tenant})
        return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("one"), cached("one"), cached("two"), cached("two")] == [0, 64, 0, 64]
    assert narrow.client.post("/v1/completions", json=LONG, headers={"x-tenant": "a b"}).status_code == 400
