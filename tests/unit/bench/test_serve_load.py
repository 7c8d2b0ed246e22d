"""The load generator against servers whose behaviour is known: a null server that logs its sends, and broken ones."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from octavo.bench.machine import describe
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import Client, fetch, stream_once
from octavo.bench.serve.load import Load
from octavo.bench.serve.metrics import measure
from octavo.bench.serve.plan import Ask, Levels, Plan, Work
from octavo.bench.serve.report import Report, compare
from octavo.bench.serve.run import measure_server
from octavo.bench.serve.self_check import Check, Judgement, check_client, null_server
from octavo.bench.serve.target import parse_target
from tests.support.odd_server import OddServer

SMALL = Work(prompt_tokens=12, output_tokens=8)
TROUBLE = {
    "429": ("http 429", "dropped"),
    "500": ("http 500", "failed"),
    "truncated": ("truncated", "cut"),
    "no end": ("truncated", "cut"),
    "reset": ("reset", "failed"),
    "malformed": ("malformed", "failed"),
    "no http": ("malformed", "failed"),
    "error event": ("error event", "cut"),
    "slow": ("timeout", "failed"),
}


def run(server: OddServer, **more: object) -> Report:
    plan = Plan(**{"users": 2, "requests": 6, "work": SMALL, "repeats": 1, "warm_up": 0, **more})  # type: ignore[arg-type]
    return measure_server(server.target, plan, None)


def test_every_event_arrives_and_none_before_it_was_sent() -> None:
    found = check_client(streams=5, rate=500, seconds=0.3)
    assert found.events == 5 * 150
    # Load on the machine makes lags; an error of the client's own would be in the smallest one too.
    assert 0 <= found.smallest_ms < 1.0, found


def test_the_client_is_judged_with_its_machine_beside_it() -> None:
    facts = describe()
    fast = Check(5, 5000.0, 50_000, 25_000.0, {"p99": 0.2}, 0.01, 0.9, 1.0, 0.6)
    slow = replace(fast, within_1ms=0.5)
    good = Judgement((fast, fast, slow), 0.0, facts)
    assert good.good and good.result and "good enough here: 2 of 3" in good.verdict
    bad = Judgement((slow, slow, fast), 0.0, facts)
    assert bad.result and not bad.good and "NOT good enough here" in bad.verdict
    busy = Judgement((slow, slow, fast), 0.5, facts)
    assert not busy.result and not busy.good and "NOT A RESULT" in busy.verdict and "50%" in busy.verdict
    # What passes on a busy machine is good.
    assert Judgement((fast, fast, fast), 0.5, facts).good
    assert [line.split()[0] for line in good.text()][:2] == ["machine", "load"]


def test_the_client_command_ends_with_its_verdict(tmp_path: Path) -> None:
    path = tmp_path / "client.json"
    done = bench("client", "--rate", "200", "--seconds", "0.2", "--repeats", "2", "--json", str(path))
    found = json.loads(path.read_text())
    assert found["good"] == (done.returncode == 0) and len(found["checks"]) == 2, done
    assert "verdict " in done.stdout and "machine " in done.stdout, done


def test_a_measurement_of_the_null_server_is_whole_and_exact() -> None:
    with null_server(400) as target:
        report = measure_server(
            target,
            Plan(users=3, requests=9, work=Work(20, 60), repeats=2, levels=Levels(e2e_ms=60_000), deadline_s=60),
            None,
        )
    for one in report.repeats:
        assert (one.due, one.complete, one.short, one.deadline_misses) == (9, 9, 0, 0)
        assert one.used_prompt == one.asked_prompt == 180 and one.used_output == 540
        assert one.tokens_per_event == 1.0 and one.good_share == 1.0
        # 400 events a second on each stream.
        assert one.tpot["p50"] == pytest.approx(2.5, rel=0.5)
        assert one.ttft["p50"] <= one.e2e["p50"]
    text = "\n".join(report.text())
    assert "TPOT       (last event with text - first) / (output tokens by usage - 1)" in text
    assert "one event a token" in text and "18 complete of 18" in text


@pytest.mark.parametrize("behaviour", TROUBLE)
def test_trouble_is_counted_by_its_kind(behaviour: str) -> None:
    with OddServer(["ok", behaviour]) as server:
        patience = 1.5 if behaviour == "slow" else 30
        report = run(server, users=1, requests=4, timeout_s=patience, levels=Levels(ttft_ms=1e6), reuse=False)
    one = report.repeats[0]
    kind, column = TROUBLE[behaviour]
    assert one.errors == {kind: 2} and one.complete == 2 and one.due == 4, one
    assert {name: getattr(one, name) for name in ("dropped", "cut", "failed")} == {
        name: 2 * (name == column) for name in ("dropped", "cut", "failed")
    }
    assert one.good_share == 0.5
    assert f"2 x {kind}" in "\n".join(report.text())


def test_an_open_loop_is_never_delayed_by_answers_that_do_not_come() -> None:
    # Nothing is answered before all are there: a loop that waited for answers would never end.
    with OddServer(["held"], hold=20) as server:
        report = run(server, shape="poisson", rate=400.0, requests=20, timeout_s=60)
    assert report.repeats[0].complete == 20
    assert server.connections >= 20


def test_a_closed_loop_has_as_many_requests_at_once_as_users() -> None:
    with OddServer(["held"], hold=4) as server:
        report = run(server, users=4, requests=24, timeout_s=60)
    assert report.repeats[0].complete == 24 and server.most_at_once == 4


def test_a_server_that_merges_tokens_is_told_and_tpot_counts_tokens() -> None:
    with OddServer(["merged"]) as server:
        report = run(server)
    assert report.repeats[0].tokens_per_event == 4
    assert "merges tokens" in "\n".join(report.text())


def test_without_usage_events_are_counted_and_that_is_said() -> None:
    class Silent(OddServer):
        async def _ok(self, writer: asyncio.StreamWriter, body: dict, merged: int = 1, usage: bool = True) -> bool:
            return await super()._ok(writer, body, merged, usage=False)

    with Silent() as server:
        report = run(server)
    assert report.repeats[0].used_output == 6 * 8 and report.repeats[0].used_prompt is None
    assert "the server tells none" in "\n".join(report.text())


def test_connections_are_reused_or_not_as_asked() -> None:
    for reuse in (True, False):
        with OddServer() as server:
            run(server, users=1, reuse=reuse)
            assert (server.connections == 1) is reuse


def test_a_connection_that_closed_while_idle_costs_no_request() -> None:
    with OddServer(["hangs up after"]) as server:
        report = run(server, users=1)
    assert report.repeats[0].complete == 6 and report.repeats[0].errors == {}
    assert f"{report.resent} requests sent again" in "\n".join(report.text()) or not report.resent


def test_chats_and_keys_and_more_fields_go_as_asked() -> None:
    with OddServer() as server:
        target = parse_target(server.target.url, api_key="k-1")
        plan = Plan(
            users=1, requests=2, work=SMALL, repeats=1, warm_up=0, ask=Ask(api="chat", extra={"top_p": 0.5}), seed=4
        )
        report = measure_server(target, plan, None)
    assert all("Authorization: Bearer k-1\r\n" in head for head in server.headers)
    assert all(body["top_p"] == 0.5 and body["temperature"] == 0 for body in server.bodies)
    assert report.repeats[0].used_prompt == 24 and report.dialect.ids is None


def test_a_cut_answer_ends_after_so_many_events() -> None:
    with OddServer() as server:
        answer = asyncio.run(stream_once(server.target, "/v1/completions", {"prompt": "a b", "max_tokens": 9}, 3))
    assert answer.cut and answer.text == " a a a" and not answer.done


def test_https_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    extra = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    made = subprocess.run([*command.split(), *extra], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    body = {"prompt": "a b", "max_tokens": 3}
    with OddServer(tls=context) as server:
        url = f"https://{server.target.authority}"
        good = asyncio.run(stream_once(parse_target(url, ca_file=str(certificate)), "/v1/completions", body))
        unchecked = asyncio.run(stream_once(parse_target(url, check_certificate=False), "/v1/completions", body))
        refused = asyncio.run(stream_once(parse_target(url), "/v1/completions", body))
    assert good.done and unchecked.done
    assert refused.failure == "unreachable" and "certificate" in refused.detail


def test_ipv6_works() -> None:
    with null_server(400, "::1") as target:
        assert target.authority.startswith("[::1]:")
        assert asyncio.run(fetch(target, "GET", "/v1/models"))[0] == 200


def test_a_client_that_was_too_slow_refuses_its_figures() -> None:
    answers = [Answer(due=0.0, sent=0.02, times=[0.03, 0.04], completion_tokens=2, ended=0.05) for _ in range(10)]
    load = Load(open_loop=True, answers=answers, ended=1.0, client_cpu=0.9, lags=[0.0] * 10)
    faults = measure(load, Plan()).faults()
    assert any("90% of a core" in fault for fault in faults) and any("10 of 10 sends were late" in f for f in faults)
    assert measure(Load(open_loop=False, answers=answers, ended=1.0, lags=[0.0]), Plan()).faults() == []
    assert measure(Load(open_loop=False, answers=answers, ended=1.0, lags=[0.1] * 10), Plan()).faults()


def test_the_formulas_are_what_is_computed() -> None:
    good = Answer(due=1.0, sent=1.0, times=[1.5, 1.6, 1.9], completion_tokens=5, ended=2.0, asked_output=5)
    late = Answer(due=1.0, sent=1.0, times=[2.0, 3.0], completion_tokens=2, ended=3.0, asked_output=4)
    gone = Answer(due=1.0, sent=1.0, times=[1.2], ended=1.3, failure="reset")
    plan = Plan(levels=Levels(ttft_ms=600, tpot_ms=100), deadline_s=1.5)
    found = measure(Load(open_loop=False, answers=[good, late, gone], began=1.0, ended=3.0), plan)
    assert found.ttft["mean"] == pytest.approx(750) and found.e2e["mean"] == pytest.approx(1450)
    assert found.tpot["mean"] == pytest.approx((100 + 1000) / 2)
    assert found.itl["mean"] == pytest.approx((100 + 300 + 1000) / 3)
    assert found.output_rate == pytest.approx(7 / 2) and found.goodput == pytest.approx(0.5)
    assert found.good_share == pytest.approx(1 / 3)
    assert (found.deadline_misses, found.cut, found.short) == (2, 1, 1)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo.cli.main", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_writes_a_result_that_two_runs_are_compared_by(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    few = ["--users", "2", "--requests", "4", "--output-tokens", "6", "--json", str(path)]
    with OddServer() as server:
        done = bench("serve", f"{server.target.url}/v1", *few)
    assert done.returncode in (0, 1) and "GOODPUT" not in done.stderr, done.stderr
    assert ("NOT A RESULT" in done.stdout) == (done.returncode == 1), done.stdout
    result = json.loads(path.read_text())
    assert [len(one["requests"]) for one in result["repeats"]] == [4] * 3
    assert result["result"] == (done.returncode == 0) and len(result["repeats"]) == 3
    told = bench("compare", str(path), str(path))
    assert "no difference seen" in told.stdout and told.returncode == 0, told
    faster = msgspec.json.decode(msgspec.json.encode(result))
    for one in faster["repeats"]:
        one["output_rate"] *= 100
    found = compare(result, faster)
    assert "100.000   more" in next(line for line in found.text() if line.startswith("output tokens/s"))
    assert [row.verdict for row in found.rows if row.figure == "output tokens/s"] == ["more"]


def test_a_comparison_is_written_for_machines_too(tmp_path: Path) -> None:
    path, out = tmp_path / "a.json", tmp_path / "compared.json"
    with OddServer() as server:
        bench("serve", server.target.url, "--users", "1", "--requests", "2", "--repeats", "1", "--json", str(path))
    told = bench("compare", str(path), str(path), "--json", str(out))
    found = json.loads(out.read_text())
    assert found["a"] == found["b"] and found["differing"] == [], told
    rates = next(row for row in found["rows"] if row["figure"] == "request rate")
    assert rates["ratio"] == 1.0 and rates["verdict"] == "fewer than three repeats", rates
    assert "machine" in found["a"] and "drifts" in found["note"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "http://127.0.0.1:9", "--requests", "1"], "no server answers there"),
        (["serve", "ftp://x"], "http:// and https:// work"),
        (["serve", "http://127.0.0.1:9", "--extra", "[]"], "--extra"),
        (["serve", "http://127.0.0.1:9", "--server-pid", "4194305"], "--server-pid"),
        (["serve", "http://127.0.0.1:9", "--json", "/nowhere/a.json"], "--json"),
        (["compare", "/nowhere/a.json", "/nowhere/b.json"], "/nowhere/a.json"),
        (["client", "--json", "/nowhere/a.json"], "--json result.json would work"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_measured_is_said_in_one_line(arguments: Sequence[str], says: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1, done


def test_many_requests_at_once_on_one_client() -> None:
    body = msgspec.json.encode({"prompt": "a", "max_tokens": 5, "stream": True})

    async def all_of_them(server: OddServer) -> list[Answer]:
        async with Client(server.target) as client:
            return list(await asyncio.gather(*(client.stream("/v1/completions", body) for _ in range(60))))

    with OddServer() as server:
        assert all(answer.complete and len(answer.times) == 5 for answer in asyncio.run(all_of_them(server)))
