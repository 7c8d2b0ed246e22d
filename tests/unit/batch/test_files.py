"""The files of a run: what an input is, what an output holds after a kill, what a record refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.batch.answers import Result
from octavo.batch.order import AsFinished, AsRead
from octavo.batch.output import FileOutput, OutputFailed, StreamOutput, open_output
from octavo.batch.progress import Progress, duration
from octavo.batch.record import Model, Record, RecordFile
from octavo.batch.source import AHEAD, InputChanged, Line, Lines, is_file, survey
from octavo.batch.writer import Writer
from octavo.config import ConfigError


def read_all(path: str, most: int = 100, check: bool = True) -> list[Line]:
    async def collect() -> list[Line]:
        lines = Lines(path, most, survey(Path(path), lambda _: None) if check else None)
        found = []
        while (line := await lines.next()) is not None:
            found.append(line)
        return found

    return asyncio.run(collect())


@given(st.lists(st.sampled_from([b"", b" ", b"a", b"bb\r", b"\xff\x00", b"x" * 5000]), max_size=12), st.booleans())
def test_lines_are_numbered_as_they_stand_and_blank_ones_passed_over(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], ended: bool
) -> None:
    content = b"\n".join(parts) + (b"\n" if ended and parts else b"")
    path = tmp_path_factory.mktemp("input") / "in"
    path.write_bytes(content)
    found = survey(path, lambda _: None)
    split = content.split(b"\n")
    expected = [Line(i, None if len(one) > 100 else one) for i, one in enumerate(split, 1) if one.strip()]
    assert [Line(line.number, line.raw and line.raw.rstrip(b"\n")) for line in read_all(str(path))] == expected
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert found.bytes == len(content)
    assert found.lines - found.blank == len(expected)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b'\xef\xbb\xbf"a"\n')
    assert read_all(str(tmp_path / "in")) == [Line(1, b'"a"\n')]


def test_an_input_that_is_changed_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a\n" * (2 * AHEAD))

    async def read() -> None:
        lines = Lines(str(path), 100, survey(path, lambda _: None))
        await lines.next()
        with path.open("ab") as file:
            file.write(b"b\n")
        while await lines.next() is not None:
            pass

    with pytest.raises(InputChanged, match="changed"):
        asyncio.run(read())


def test_a_slow_pipe_gives_each_line_as_it_comes_and_never_more_than_a_few_are_kept(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    path = f"/dev/fd/{reader}"
    assert not is_file(path)

    async def read() -> None:
        lines = Lines(path, 100, None)
        os.write(writer, b"one\ntw")
        assert await lines.next() == Line(1, b"one\n")
        os.write(writer, b"o\n")
        assert await lines.next() == Line(2, b"two\n")
        feeder = threading.Thread(
            target=lambda: [os.write(writer, b"x" * 99 + b"\n") for _ in range(20_000)], daemon=True
        )
        feeder.start()
        await lines.next()
        feeder.join(0.2)
        assert feeder.is_alive(), "the pipe is full: nobody reads ahead without end"
        assert lines._queue.qsize() <= AHEAD
        lines.close()

    asyncio.run(read())


@pytest.mark.parametrize(("name", "says"), [("none", "cannot be read"), (".", "is a directory")])
def test_an_input_that_is_none_is_one_sentence(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        is_file(str(tmp_path / name))


def written(*numbers: int) -> bytes:
    return b"".join(json.dumps({"line": number, "text": "ä" * number}).encode() + b"\n" for number in numbers)


@given(st.lists(st.integers(1, 20), unique=True, max_size=12), st.integers(0, 10_000))
def test_wherever_an_output_is_cut_its_whole_lines_are_kept_and_the_rest_goes(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], cut: int
) -> None:
    whole = written(*numbers)
    kept = whole[: cut % (len(whole) + 1)]
    path = tmp_path_factory.mktemp("output") / "out"
    path.write_bytes(kept)
    output = FileOutput(path)
    answered = output.resume(20)
    lines = kept.count(b"\n")
    assert [number for number in range(1, 21) if number in answered] == sorted(numbers[:lines])
    assert answered.count == lines
    output.append(written(*numbers[lines:]))
    output.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (written(1, 2, 1), r"line 3 of .*again"),
        (written(1, 21), r"line 2 of .* INPUT has no such line"),
        (written(1) + b"{}\n" + written(2), r"line 2 of .* is no answer of a run"),
        (b"\0" * 40 + b"\n" + written(2), r"line 1 of .* is no answer of a run"),
    ],
)
def test_an_output_that_no_run_left_is_refused_and_stays_as_it_is(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    output = FileOutput(path)
    with pytest.raises(ConfigError, match=says):
        output.resume(20)
    assert path.read_bytes() == content


def test_two_runs_never_write_to_one_output(tmp_path: Path) -> None:
    output = open_output(str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="another octavo run is writing"):
        open_output(str(tmp_path / "out"))
    output.close()
    open_output(str(tmp_path / "out")).close()


@pytest.mark.parametrize("name", ["none/out", ""])
def test_an_output_that_cannot_be_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"-o .* cannot be written"):
        open_output(str(tmp_path / name))


def test_a_full_disk_is_one_sentence_and_nothing_is_written_after_it() -> None:
    async def write() -> list[OutputFailed]:
        failures: list[OutputFailed] = []
        failed = asyncio.Event()

        def fail(error: OutputFailed) -> None:
            failures.append(error)
            failed.set()

        writer = Writer(StreamOutput("/dev/full"), lambda: None, fail)
        writer.put(b"a\n")
        await asyncio.wait_for(failed.wait(), 10)
        assert await writer.finish(10)
        return failures

    assert [str(error) for error in asyncio.run(write())] == [
        "-o, the output, cannot be written: No space left on device"
    ]


MODEL = Model(name="m", weights="w", tokenizer="", numerics="n", template="", sampling="{}", max_model_len=64)


def record(**changes: object) -> Record:
    base = Record(sha256="1", settings={"--seed": "0", "--max-tokens": "not given"}, model=MODEL)
    return msgspec.structs.replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sha256": "2"}, "another INPUT"),
        ({"settings": {"--seed": "1", "--max-tokens": "not given"}}, "--seed: 0, which now is 1"),
        ({"settings": {"--seed": "0", "--max-tokens": "4"}}, "--max-tokens: not given, which now is 4"),
        ({"model": msgspec.structs.replace(MODEL, weights="v")}, "the model's weights"),
        ({"model": msgspec.structs.replace(MODEL, max_model_len=32)}, "--max-model-len"),
    ],
)
def test_other_terms_are_refused_by_name(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    file = RecordFile(tmp_path / "out")
    assert file.read() is None
    file.write(record())
    before = file.read()
    assert before == record()
    file.check(before, record())
    with pytest.raises(ConfigError, match=says):
        file.check(before, record(**changes))


def test_a_record_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "out")
    file.path.write_bytes(b"{")
    with pytest.raises(ConfigError, match="no record of a run"):
        file.read()


@given(st.permutations(range(1, 9)))
def test_in_the_inputs_order_each_result_waits_for_those_before_it(finishing: list[int]) -> None:
    order, written_lines = AsRead(), []
    for number in range(1, 9):
        order.begin(number)
    for count, number in enumerate(finishing, 1):
        written_lines += [one.line for one in order.finish(Result(number, b"0123456789"))]
        assert order.held == 10 * (count - len(written_lines))
    assert written_lines == list(range(1, 9))
    free = AsFinished()
    assert [free.finish(Result(number, b""))[0].line for number in finishing] == finishing
    assert free.held == 0


def test_progress_is_for_terminals() -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress(stream, 10, 4, errors=1)
        progress.began()
        progress.finished(12, False)
        progress.show(0)
        progress.show(100)
        progress.clear()
        assert progress.summary().startswith("5 of 10 lines (4 of them before) in 0:00")
        assert progress.summary().endswith("1 of them errors")
    shown = terminal.getvalue()
    assert "[############            ]  5 of 10 lines" in shown
    assert "tok/s" in shown and "left" in shown
    assert not file.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:00"), (61, "1:01"), (3723, "1:02:03")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
