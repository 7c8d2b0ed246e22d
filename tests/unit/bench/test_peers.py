"""Other engines beside Octavo: processes that take turns and leave nothing, ratios in pairs, and what fails said."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.peers.compare import Comparison, Seen, compare, make_groups
from octavo.bench.peers.contender import WORKERS, Contender, Sample, Timing, Work, offline, rates, room_for
from octavo.bench.peers.environments import PEERS, build_switches, pins
from octavo.bench.peers.guard import Guard, session_pids
from octavo.bench.peers.plan import choose_forms, choose_works
from octavo.bench.peers.report import ratios_of, rows_of, text_of
from octavo.bench.peers.worker import Worker, WorkerError
from octavo.cli.main import cli
from octavo.config import ConfigError
from tests.support.tiny import Tiny, write_hf

WORKS = (Work("decode-2", 2, 16, 6, "decode"), Work("prefill-40", 1, 40, 1, "prefill"))
ROOM = room_for(WORKS, 1)
VOCAB = 200

SCRIPT = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {str(WORKERS)!r})
from loop import serve

class Engine:
    runs = 0
    def load(self, settings):
        self.settings = settings
        if settings.get("child"):
            self.child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
            return {{"child": self.child.pid}}
        if settings.get("refuse"):
            raise ValueError(settings["refuse"])
        return {{}}
    def run(self, prompts, output):
        self.runs += 1
        print("noise on standard output", flush=True)
        if self.runs == self.settings.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.settings.get("hang"):
            signal.pause()
        counts = [output - self.settings.get("short", 0)] * len(prompts)
        return {{"seconds": 0.5 * output, "first": None, "last": None, "late": None, "counts": counts, "extra": {{}}}}
    def close(self):
        pass

serve(Engine())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("peers") / "model", Tiny(max_context=512)).path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., Contender]:
    """A process that speaks the protocol and misbehaves as told."""
    script = tmp_path / "engine.py"
    script.write_text(SCRIPT)
    return lambda name="scripted", **load: Contender(name, "f32", (sys.executable, str(script)), load)


@pytest.fixture
def guard() -> Iterator[Guard]:
    with Guard() as guard:
        yield guard


def octavo(model: Path, peer: str, form: str, **execution: object) -> Contender:
    made = offline("octavo", form, model, None, ROOM)
    return Contender(peer, form, made.command, {**made.load, "execution": execution})


def gone(pids: list[int]) -> bool:
    return not any(Path("/proc", str(pid), "cmdline").read_bytes() for pid in pids if Path("/proc", str(pid)).exists())


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        os.sched_yield()


def test_two_settings_take_turns_on_the_same_work_and_are_compared_in_pairs(model: Path) -> None:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    contenders = [octavo(model, "octavo", "bf16"), octavo(model, "other", "bf16", program=False)]
    found = compare(contenders, WORKS, 6, seed, VOCAB, print)
    assert not any(seen.problem for seen in found.seen.values())
    assert len(found.samples) == 6 * len(WORKS) * 2
    assert all(sample.prefill_rate > 0 for sample in found.samples)
    assert {sample.order for sample in found.samples} == {0, 1}
    assert all(seen.memory_bytes > 0 and seen.start_seconds > 0 for seen in found.seen.values())
    rows = rows_of(found)
    ratios = ratios_of(found, rows)
    assert [against.ratio.pairs for against in ratios if against.ratio] == [6, 6]
    text = "\n".join(text_of(found, rows, ratios, []))
    assert "octavo bf16 / other bf16" in text and "others" in text


def test_a_stopped_worker_stands_still_with_its_children_and_goes_on(
    scripted: Callable[..., Contender], guard: Guard, tmp_path: Path
) -> None:
    worker = Worker(scripted(child=True), guard, tmp_path / "log")
    worker.start()
    child = worker.wait_ready(30)["child"]
    worker.pause()
    assert set(session_pids(worker.session)) == {worker.session, child}
    assert set(session_pids(worker.session).values()) <= {"T", "t"}
    worker.resume()
    assert worker.run([[1, 2]], 3, 30).counts == (3,)
    worker.close()
    assert gone([worker.session, child])
    assert b"noise on standard output" in (tmp_path / "log").read_bytes()


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ({"die": 2}, "ended by SIGKILL"),
        ({"short": 1}, "gave answers of"),
        ({"refuse": "no such instruction set"}, "ValueError: no such instruction set"),
    ],
)
def test_a_worker_that_fails_is_named_with_its_reason_and_the_others_go_on(
    load: dict[str, object], reason: str, scripted: Callable[..., Contender]
) -> None:
    found = compare([scripted("octavo"), scripted("bad", **load)], WORKS[:1], 2, 1, VOCAB, print)
    assert reason in (found.seen["bad f32"].problem or "")
    assert "log" in (found.seen["bad f32"].problem or "")
    assert [sample.contender for sample in found.samples] == ["octavo f32"] * 2
    assert any(line.startswith("problem") and reason in line for line in text_of(found, rows_of(found), [], []))


def test_a_worker_that_gives_no_answer_is_not_waited_for(
    scripted: Callable[..., Contender], guard: Guard, tmp_path: Path
) -> None:
    worker = Worker(scripted(hang=True), guard, tmp_path / "log")
    worker.start()
    worker.wait_ready(30)
    with pytest.raises(WorkerError, match="gave no answer within"):
        worker.run([[1]], 2, 0.1)
    worker.kill()
    assert gone([worker.session])


def test_a_worker_that_cannot_start_says_what_is_missing(guard: Guard, tmp_path: Path) -> None:
    worker = Worker(Contender("vllm", "bf16", ("/nowhere/python",), {}), guard, tmp_path / "log")
    with pytest.raises(WorkerError, match=r"vllm bf16 cannot be started .*nowhere"):
        worker.start()


def test_a_killed_command_leaves_nothing_not_even_what_was_stopped(
    scripted: Callable[..., Contender], tmp_path: Path
) -> None:
    contender = scripted(child=True)
    code = f"""
import sys
from pathlib import Path
from octavo.bench.peers.contender import Contender
from octavo.bench.peers.guard import Guard, session_pids
from octavo.bench.peers.worker import Worker
guard = Guard().__enter__()
workers = []
for name in "ab":
    contender = Contender("p", name, {contender.command!r}, {{"child": True}})
    workers.append(Worker(contender, guard, Path({str(tmp_path)!r}, name)))
for worker in workers:
    worker.start()
    worker.wait_ready(30)
workers[0].pause()
print(guard._process.pid, *[pid for worker in workers for pid in session_pids(worker.session)], flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 5
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(lambda: gone(pids))


def test_where_an_engine_tells_no_first_token_a_run_of_one_token_stands_for_it() -> None:
    work = Work("w", 4, 10, 9, "decode")
    blind = Timing(5.0, None, None, None, (9,) * 4, {})
    assert rates(work, blind, 1.0) == (40.0, 8.0, 36 / 5.0)
    seen = Timing(5.0, (0.5, 1.0, 1.0, 1.0), (4.0, 5.0, 5.0, 5.0), 28, (9,) * 4, {})
    assert rates(work, seen, None) == (40.0, 7.0, 36 / 5.0)
    assert rates(Work("p", 1, 10, 1, "prefill"), Timing(2.0, (2.0,), (2.0,), 0, (1,), {}), None) == (5.0, 0.0, 0.5)


@given(st.lists(st.integers(1, 100), max_size=12), st.integers(0, 300))
def test_groups_fit_into_memory_and_hold_octavo_and_every_engine_that_fits_once(needs: list[int], free: int) -> None:
    own = Contender("octavo", "bf16", (), {}, need_bytes=10)
    others = [Contender("peer", str(index), (), {}, need_bytes=need) for index, need in enumerate(needs)]
    groups = make_groups([own, *others], free)
    assert all(group[0] is own for group in groups)
    assert all(sum(one.need_bytes for one in group) <= free for group in groups if len(group) > 1)
    placed = [one for group in groups for one in group[1:]]
    assert placed == [one for one in others if one.need_bytes <= free - 10]


def test_a_ratio_is_taken_against_the_best_form_and_only_where_both_ran_the_same_way() -> None:
    names = [
        ("octavo", "bf16", "offline"),
        ("octavo", "bf16", "http"),
        ("peer", "a", "offline"),
        ("peer", "b", "offline"),
    ]
    contenders = tuple(Contender(peer, form, (), {}, way=way) for peer, form, way in names)
    speeds = [30.0, 5.0, 10.0, 20.0]
    samples = tuple(
        Sample(contender.name, "decode-2", number, 0, 0, 1.0, 1.0, speed * (1 + 0.01 * number), 1.0, {})
        for number in range(7)
        for contender, speed in zip(contenders, speeds, strict=True)
    )
    seen = {contender.name: Seen() for contender in contenders}
    found = Comparison(contenders, WORKS[:1], ((),), samples, seen, 7, 1, 0.0, 1.0)
    (against,) = ratios_of(found, rows_of(found))
    assert (against.own.name, against.other.name) == ("octavo bf16", "peer b")
    assert against.ratio is not None and against.ratio.value == pytest.approx(1.5)
    assert [row.best for row in rows_of(found)] == [True, True, False, True]


def test_every_engine_is_pinned_exactly_and_no_registry_is_named() -> None:
    for peer in PEERS:
        assert all(version and version[0].isdigit() for version in pins(peer).values())
    assert "http" not in (WORKERS.parent / "versions.txt").read_text()


def test_llamacpp_is_built_for_what_the_cpu_has_and_never_for_amx() -> None:
    switches = build_switches({"avx2", "fma", "amx_tile", "amx_int8"})
    assert "-DGGML_AVX2=ON" in switches and "-DGGML_AVX512=OFF" in switches and "-DGGML_NATIVE=OFF" in switches
    assert not any("AMX" in switch and switch.endswith("=ON") for switch in switches)


def test_names_select_and_unknown_ones_are_refused_with_those_that_work() -> None:
    assert [work.name for work in choose_works(("decode-8",), True)] == ["decode-8"]
    assert {form.peer for form in choose_forms(("vllm",), ())} == {"octavo", "vllm"}
    assert [(form.peer, form.name) for form in choose_forms(("openvino",), ("openvino:int8",))] == [
        ("octavo", "file"),
        ("octavo", "bf16"),
        ("openvino", "int8"),
    ]
    assert {form.name for form in choose_forms((), ("bf16",))} == {"bf16"}
    with pytest.raises(ConfigError, match="--workloads decode-9 is not known"):
        choose_works(("decode-9",), True)
    with pytest.raises(ConfigError, match="--forms int3 is not known"):
        choose_forms((), ("int3",))
    for arguments, text in [
        (["--setup", "sglang"], "--setup sglang is not known"),
        (["--peers", "sglang"], "--peers sglang is not known"),
        (["vllm"], "--peers vllm would compare"),
    ]:
        done = CliRunner().invoke(cli, ["bench", "peers", *arguments])
        assert done.exit_code != 0 and text in str(done.exception)
