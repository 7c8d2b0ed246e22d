"""`octavo run` over files, on a real engine process: kills, signals, wrong lines, streams."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from octavo.batch.run import run_batch
from octavo.config import ConfigError
from tests.support.batch import arguments, batch, run, start
from tests.support.echo_engine import FAIL
from tests.support.server import alive, children, wait_until
from tests.support.tiny import Tiny, write_hf

SECONDS = 60.0
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("batch") / "tiny", Tiny(max_context=1024)).path


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def mixed(count: int, longest: int = 60) -> list[Any]:
    """Prompts of all kinds, some wrong; the echo's answers are as long as they are."""
    drawn = random.Random(count)
    lines: list[Any] = []
    for i in range(count):
        words = " ".join(drawn.choice(["one", "two", "three"]) for _ in range(drawn.randint(1, longest // 6)))
        kinds: list[Any] = [
            {"prompt": f"{i} {words}", "max_tokens": drawn.randint(1, longest), "id": i},
            {"messages": [{"role": "user", "content": f"{i} {words}"}], "max_tokens": longest},
            {
                "custom_id": f"c{i}",
                "method": "POST",
                "url": CHAT,
                "body": {"messages": [{"role": "user", "content": f"{i} {words}"}], "max_tokens": longest},
            },
            json.dumps(json.dumps(f"{i} {words}")),
            {"prompt": words, "temperature": -1},
            "wrong",
        ]
        lines.append(drawn.choices(kinds, [8, 3, 3, 3, 1, 1])[0])
    return lines


def told(path: Path) -> list[dict[str, Any]]:
    """The output, without what a batch answer says of its time and its neighbours."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        body = (line.get("response") or {}).get("body", {})
        body.pop("created", None)
        body.get("usage", {}).pop("prompt_tokens_details", None)
    return found


def count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("order", "parts"), [("input", (0.1, 0.4, 0.7)), ("finish", (0.4,))])
def test_a_run_that_is_killed_equals_an_undisturbed_one(
    model: Path, tmp_path: Path, order: str, parts: tuple[float, ...]
) -> None:
    lines = mixed(300)
    source, calm, killed = write(tmp_path / "in", lines), tmp_path / "calm", tmp_path / "killed"
    assert run(batch(model, source, calm))[0] == 1, "some lines are wrong"
    kills = 0
    for part in parts:
        at = int(len(lines) * part) + random.randint(0, 30)
        process = start(batch(model, source, killed, order=order))
        wait_until(lambda at=at, process=process: count(killed) >= at or process.poll() is not None, "answers", SECONDS)  # type: ignore[misc]
        kills += process.poll() is None
        family = [process.pid, *children(process.pid)] if process.poll() is None else []
        process.kill()
        process.communicate()
        wait_until(lambda family=family: not any(map(alive, family)), "nobody is left", SECONDS)  # type: ignore[misc]
        with killed.open("ab") as file:
            file.write(b'{"line": 1, "te')  # as if the last write had been cut
    assert kills == len(parts)
    assert run(batch(model, source, killed, order=order))[0] == 1
    found = told(killed)
    if order == "finish":
        found.sort(key=lambda line: line.get("line") or int(str(line["id"]).rpartition("_")[2]))
    assert found == told(calm)
    assert len(found) == len(lines)


def test_a_run_that_is_interrupted_says_how_to_go_on_and_does(model: Path, tmp_path: Path) -> None:
    number = random.choice([signal.SIGINT, signal.SIGTERM])
    source, target = write(tmp_path / "in", mixed(300)), tmp_path / "out"
    process = start(batch(model, source, target))
    wait_until(lambda: count(target) >= 20, "answers", SECONDS)
    family = children(process.pid)
    process.send_signal(number)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number
    assert b"of 300 lines are answered, and the same command goes on from there" in errors
    assert b"Traceback" not in errors
    assert not any(map(alive, family))
    assert count(target) < 300
    assert run(batch(model, source, target))[0] == 1
    assert len(told(target)) == 300


def test_wrong_lines_are_told_and_stop_nothing(model: Path, tmp_path: Path) -> None:
    lines = [
        {"prompt": "one", "id": "a"},
        "wrong",
        {"prompt": "two", "max_tokens": 10**9, "min_tokens": 10**9},
        {"prompt": [FAIL, 3, 4]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"prompt": "three", "unknown": 1},
        {"prompt": "x " * 3000},
        {"prompt": "a" * 5_000_000},
        {"custom_id": "c", "url": CHAT, "body": {"model": "other", "messages": []}},
        {"prompt": "four", "best_of": 17},
        "five",
        '"five"',
    ]
    source, target = write(tmp_path / "in", lines), tmp_path / "out"
    status, errors, _ = run(batch(model, source, target))
    assert status == 1 and "of them errors" in errors and "Traceback" not in errors
    found = told(target)
    assert [line.get("line") for line in found] == [1, 2, 3, 4, 5, 6, 7, 8, None, 10, 11, 12]
    assert found[0]["text"] == "one" and found[11]["text"] == "five"
    for i in (1, 2, 3, 4, 5, 6, 7, 9, 10):
        assert found[i]["error"]["message"], found[i]
    assert "made to fail" in found[3]["error"]["message"]
    assert found[7]["error"]["code"] == "line_too_long"
    assert found[8]["response"]["status_code"] == 400


def test_strict_stops_at_the_first_wrong_line_and_keeps_what_was_before(model: Path, tmp_path: Path) -> None:
    source, target = write(tmp_path / "in", ['"one"', '"two"', "wrong", '"three"']), tmp_path / "out"
    status, errors, _ = run(batch(model, source, target, strict=True, window=1))
    assert status == 1
    assert "line 3 of INPUT has no answer" in errors
    assert [line["text"] for line in told(target)] == ["one", "two"]
    assert run(batch(model, source, target))[0] == 1
    assert len(told(target)) == 4


def test_only_the_same_run_goes_on(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "in", ['"one"', '"two"']), tmp_path / "out"
    assert run(batch(model, source, target, max_tokens=3))[:2] == (0, "")
    whole = target.read_bytes()
    assert run_batch(*arguments(batch(model, source, target, max_tokens=3))) == 0
    assert "all 2 lines are answered" in capsys.readouterr().err
    for other, says in (
        (batch(model, source, target, max_tokens=4), "--max-tokens: 3, which now is 4"),
        (batch(model, source, target, max_tokens=3, order="finish"), "--order"),
        (batch(model, write(tmp_path / "other", ['"one"']), target, max_tokens=3), "another INPUT"),
        (batch(model, "-", target, max_tokens=3), "INPUT is a stream"),
        (batch(model, target, target, max_tokens=3), "is INPUT itself"),
    ):
        with pytest.raises(ConfigError, match=says):
            run_batch(*arguments(other))
    assert target.read_bytes() == whole
    foreign = tmp_path / "mine"
    foreign.write_text("my notes\n")
    with pytest.raises(ConfigError, match="no run began it"):
        run_batch(*arguments(batch(model, source, foreign)))
    assert foreign.read_text() == "my notes\n"
    assert run(batch(model, source, foreign, overwrite=True))[0] == 0
    assert len(told(foreign)) == 2


def test_streams_go_in_and_out(model: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"{i} one"}) for i in range(50)]
    status, errors, out = run(batch(model, "-", "-", window=4), "\n".join(lines).encode())
    assert (status, errors) == (0, "")
    assert [json.loads(line)["text"] for line in out.splitlines()] == [f"{i} one" for i in range(50)]


def test_a_reader_that_goes_ends_the_run_in_a_sentence(model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", mixed(200))
    process = start(batch(model, source, "-"), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(SECONDS) == 1
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert b"nobody reads it any more" in errors and b"Traceback" not in errors


def test_an_engine_that_is_killed_costs_no_line(model: Path, tmp_path: Path) -> None:
    source, calm, target = write(tmp_path / "in", mixed(200)), tmp_path / "calm", tmp_path / "out"
    run(batch(model, source, calm))
    process = start(batch(model, source, target))
    wait_until(lambda: count(target) >= 50, "answers", SECONDS)
    engines = [pid for pid in children(process.pid) if "--fd" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
    os.kill(engines[0], signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert told(target) == told(calm)


def test_many_choices_fill_the_queue_without_an_error(model: Path, tmp_path: Path) -> None:
    lines = [{"prompt": f"{i} one two", "n": 16, "max_tokens": 8} for i in range(40)]
    source, target = write(tmp_path / "in", lines), tmp_path / "out"
    what = batch(model, source, target, max_num_seqs=4)
    engine = what.engine
    small = type(engine)(
        model=engine.model,
        kv=engine.kv,
        scheduler=type(engine.scheduler)(max_num_seqs=4, max_queue_requests=20),
        validate_kv=True,
    )
    status, errors, _ = run(type(what)(small, what.input, what.output, window=30))
    assert (status, errors) == (0, "")
    assert all(len(line["choices"]) == 16 for line in told(target))
