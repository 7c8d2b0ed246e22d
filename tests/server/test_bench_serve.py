"""The load generator against the real server: what it asks for is what is counted, and shared prefixes are cached."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from octavo.bench.serve.plan import Ask, Plan, TraceUse, Work
from octavo.bench.serve.report import Report
from octavo.bench.serve.run import measure_server
from octavo.bench.serve.target import parse_target
from tests.support.server import Server


def run(server: Server, **more: object) -> Report:
    plan = Plan(**{"repeats": 1, "warm_up": 1, "seed": secrets.randbelow(1 << 31), **more})  # type: ignore[arg-type]
    return measure_server(parse_target(server.url), plan, server.process.pid)


def test_prompts_of_ids_have_the_tokens_that_were_asked(tiny: Server) -> None:
    report = run(tiny, users=3, requests=9, work=Work(40, 12, shared_tokens=32))
    one = report.repeats[0]
    assert report.dialect.ids is not None, report
    assert one.complete == one.due == 9 and not one.errors, report
    assert one.used_prompt == one.asked_prompt == 9 * 40, report
    assert one.used_output == one.asked_output and one.short == 0, report
    assert one.server_cpu is not None and one.server_cpu > 0
    assert report.connections <= 3 + report.resent, report
    assert tiny.idle()


def test_a_replayed_trace_hits_the_prefix_cache_where_its_hashes_say(tiny: Server, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0, [1, 2]), (3000, [1, 2, 3]), (6000, [1, 4]), (9000, [5])]
    path.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": 512 * len(ids), "output_length": 40, "hash_ids": ids}) + "\n"
            for at, ids in rows
        )
    )
    # Blocks of 64 tokens: whole pages of the server, so every shared token can be cached.
    report = run(tiny, shape="trace", trace=TraceUse(str(path), factor=8.0, rate=4.0))
    one = report.repeats[0]
    assert one.complete == 4 and one.used_prompt == 64 * 8, report
    assert one.cached_prompt == 64 * 3, report
    assert "192 of 512 prompt tokens begin an earlier prompt too" in "\n".join(report.text())


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_text_is_calibrated_by_the_servers_usage(tiny: Server, api: str) -> None:
    report = run(tiny, users=2, requests=4, work=Work(120, 4), ask=Ask(api=api, prompts="text"))  # type: ignore[arg-type]
    one = report.repeats[0]
    assert report.dialect.ids is None and report.dialect.per_word > 1, report
    assert one.complete == 4 and one.used_prompt == pytest.approx(one.asked_prompt, rel=0.25), report


def test_a_request_that_the_server_refuses_is_a_failure_with_its_reason(tiny: Server) -> None:
    report = run(tiny, users=1, requests=2, work=Work(2000, 4))
    one = report.repeats[0]
    assert one.errors == {"http 400": 2} and one.failed == 2
    assert "no answer was complete" in "\n".join(report.faults)
    assert "1 of 1 requests of the warm-up failed: http 400" in "\n".join(report.text())
