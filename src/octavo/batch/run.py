"""`octavo run INPUT -o OUTPUT`: every line of a file answered once, whatever happens in between.

Life: the input is looked through -> the output is locked, and what it holds already is marked -> the terms are compared
with those it was begun with -> the engine loads -> lines are read, answered through the server's own endpoints
(server/local.py), and appended as they are done -> the engine ends. So many lines are open at once that the engine
always has work; reading waits while finished answers that cannot be written yet take much memory, so an input may be
of any size. A line that is wrong becomes a line that says so. An engine that dies is started again by the client, as
behind the server; a run that is killed leaves whole lines, and the same command goes on.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from octavo.batch.answers import Result, answer, refusal, request_id
from octavo.batch.lines import Defaults, LineError, line_bytes, read_call
from octavo.batch.order import ORDERS
from octavo.batch.output import Answered, FileOutput, StreamOutput, open_output
from octavo.batch.progress import ClearingHandler, Progress
from octavo.batch.record import NOT_GIVEN, Model, Record, RecordFile
from octavo.batch.source import InputChanged, Line, Lines, Survey, is_file, survey
from octavo.batch.writer import Writer
from octavo.config import ConfigError, EngineConfig, ServerConfig
from octavo.engine.guard import open_standard_streams
from octavo.engine.supervisor import ENGINE_COMMAND
from octavo.models.locate import locate_model
from octavo.server.local import LocalApi
from octavo.server.service import Service
from octavo.types import Progress as Loading

logger = logging.getLogger(__name__)

HELD_BYTES = 64 << 20
"""Finished answers that cannot be written yet; beyond that no line is begun."""
_TICK_SECONDS = 0.2
_STREAM_SECONDS = 2.0
"""A reader of a stream has so long to take the last lines of a run that was stopped."""


@dataclass(frozen=True)
class BatchOptions:
    """What the command line asks for."""

    input: str
    """A path, or - for standard input."""
    output: str
    defaults: Defaults
    order: str = "input"
    window: int | None = None
    """Lines open at once; None: twice what a step holds."""
    strict: bool = False
    """Stop at the first line that is wrong."""
    overwrite: bool = False

    def settings(self) -> dict[str, str]:
        """What answers depend on, flag by flag."""
        defaults = self.defaults
        return {
            "--seed": str(defaults.seed),
            "--max-tokens": _shown(defaults.max_tokens),
            "--temperature": _shown(defaults.temperature),
            "--chat": "given" if defaults.chat else NOT_GIVEN,
            "--order": self.order,
        }


def _shown(value: float | None) -> str:
    return NOT_GIVEN if value is None else str(value)


class RunStopped(Exception):
    """The run ends before its end; the message is one sentence."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run_batch(engine: EngineConfig, options: BatchOptions, command: Sequence[str] = ENGINE_COMMAND) -> int:
    """The exit status: 0, or 1 where a line has no answer; 130 and 143 after a signal. Raises ConfigError."""
    open_standard_streams()
    progress = Progress(sys.stderr, None, 0)
    found = None
    if is_file(options.input):
        found = survey(Path(options.input), lambda part: progress.say("reading the input", part))
    output = open_output(options.output)
    try:
        begun, answered = _take_up(output, found, options)
        lines = None if found is None else found.lines - found.blank
        progress.clear()
        progress = Progress(sys.stderr, lines, answered.count, answered.errors)
        if answered.count and answered.count == lines:
            errors = f", {answered.errors} of them with errors" if answered.errors else ""
            print(f"octavo run: all {lines} lines are answered in {options.output} already{errors}", file=sys.stderr)
            return 1 if answered.errors else 0
        engine = replace(engine, model=locate_model(engine.model))
        run = _Run(engine, options, output, found, answered, begun, progress)
        _log_beside(progress)
        return asyncio.run(run.go(command))
    finally:
        progress.clear()
        output.close()


def _log_beside(progress: Progress) -> None:
    """Warnings and errors go to standard error, each on its own line."""
    owner = logging.getLogger("octavo")
    owner.handlers = [ClearingHandler(sys.stderr, progress)]
    owner.propagate = False
    owner.setLevel(logging.WARNING)


def _take_up(
    output: FileOutput | StreamOutput, found: Survey | None, options: BatchOptions
) -> tuple[Record | None, Answered]:
    """The record that the output was begun with, and what it holds. Raises ConfigError."""
    nothing = Answered(0 if found is None else found.lines)
    if isinstance(output, StreamOutput):
        return None, nothing
    if found is not None and output.is_same_file(options.input):
        raise ConfigError(f"-o {options.output} is INPUT itself; another path would work")
    if options.overwrite:
        output.clear()
    if output.empty:
        return None, nothing
    file = RecordFile(output.path)
    if found is None:
        raise ConfigError(
            f"-o {output.path} holds something, and INPUT is a stream, with which no run can go on; another -o, or "
            "--overwrite, would work"
        )
    before = file.read()
    if before is None:
        raise ConfigError(
            f"-o {output.path} holds something, and no run began it ({file.path.name} is not beside it); another -o, "
            "or --overwrite, would work"
        )
    file.check(before, Record.begin(found, options.settings()))
    return before, output.resume(found.lines)


class _Run:
    """One run over the input."""

    def __init__(
        self,
        engine: EngineConfig,
        options: BatchOptions,
        output: FileOutput | StreamOutput,
        found: Survey | None,
        answered: Answered,
        begun: Record | None,
        progress: Progress,
    ) -> None:
        self._engine = engine
        self._options = options
        self._output = output
        self._found = found
        self._answered = answered
        self._begun = begun
        self._progress = progress
        self._config = ServerConfig()
        self._window = options.window or 2 * engine.scheduler.max_num_seqs
        self._order = ORDERS[options.order]()
        self._open: set[asyncio.Task[None]] = set()
        self._ended_lines = 0

    # --- life ---------------------------------------------------------------------------------------

    async def go(self, command: Sequence[str]) -> int:
        """From the engine's start to its end; the exit status."""
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._freed = asyncio.Event()
        ready: asyncio.Future[None] = loop.create_future()
        self._service = Service(
            self._engine,
            self._config,
            on_ready=lambda _: ready.set_result(None),
            on_failure=lambda reason: self._end(RunStopped(reason, 1)),
            on_progress=self._loading,
            command=command,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        self._service.start()
        try:
            await self._or_end(ready)
            self._begin_record()
            await self._answer_all()
        except RunStopped as stopped:
            self._progress.clear()
            print(f"octavo run: {stopped}; {self._stand()}", file=sys.stderr)
            return stopped.status
        finally:
            await self._service.close()
        self._progress.clear()
        if self._progress.seen or self._progress.errors:
            print(f"octavo run: {self._progress.summary()}", file=sys.stderr)
        return 1 if self._progress.errors else 0

    def _loading(self, loading: Loading) -> None:
        self._progress.say(loading.what, loading.fraction)

    def _signalled(self, number: signal.Signals) -> None:
        asyncio.get_running_loop().remove_signal_handler(number)  # a second one ends the process
        self._end(RunStopped("interrupted" if number == signal.SIGINT else "ended by SIGTERM", 128 + number))

    def _end(self, reason: RunStopped) -> None:
        if not self._ended.done():
            self._ended.set_exception(reason)

    def _stand(self) -> str:
        """How far it is, and how it goes on."""
        count = f"{self._progress.count()} are answered"
        if isinstance(self._output, StreamOutput) or self._found is None:
            return f"{count}, and a stream cannot be gone on with"
        return f"{count}, and the same command goes on from there"

    async def _or_end(self, what: asyncio.Future[None]) -> None:
        """Waits for it, unless the run ends first. Raises RunStopped."""
        await asyncio.wait({what, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            self._ended.result()
        what.result()

    def _begin_record(self) -> None:
        """The terms are whole now: compared with those of the output, or written down."""
        if isinstance(self._output, StreamOutput) or self._found is None:
            return
        ready = self._service.client.ready
        assert ready is not None
        model = Model.of(self._service.engine.model, ready.info, ready.max_model_len)
        now = Record.begin(self._found, self._options.settings()).with_model(model)
        file = RecordFile(self._output.path)
        if self._begun is None:
            file.write(now)
        else:
            file.check(self._begun, now)

    # --- lines --------------------------------------------------------------------------------------

    async def _answer_all(self) -> None:
        self._api = LocalApi(self._service)
        self._writer = Writer(self._output, self._freed.set, lambda error: self._end(RunStopped(str(error), 1)))
        self._progress.began()
        ticker = asyncio.create_task(self._tick())
        pump = asyncio.create_task(self._pump())
        try:
            await self._or_end(pump)
        finally:
            ticker.cancel()
            pump.cancel()
            await asyncio.wait({pump})
            pump.cancelled() or pump.exception()
            for task in (opened := set(self._open)):
                task.cancel()
            if opened:
                await asyncio.wait(opened)
            # A file takes what is finished; who reads a stream may have stopped reading.
            patient = isinstance(self._output, FileOutput) or not self._ended.done()
            await self._writer.finish(None if patient else _STREAM_SECONDS)
        if self._ended.done():
            self._ended.result()  # the last lines could not be written

    async def _tick(self) -> None:
        while True:
            stats = self._service.client.stats
            self._progress.show(0 if stats is None else stats.generated_tokens)
            await asyncio.sleep(_TICK_SECONDS)

    async def _pump(self) -> None:
        """Reads lines, and begins each when there is room."""
        lines = Lines(self._options.input, line_bytes(self._config), self._found)
        try:
            while True:
                await self._until(self._has_room)
                line = await lines.next()
                if line is None:
                    break
                if line.number not in self._answered:
                    self._begin(line)
            await self._until(lambda: not self._open)
        except InputChanged as error:
            raise RunStopped(str(error), 1) from error
        except OSError as error:
            raise RunStopped(f"INPUT {self._options.input} cannot be read: {error.strerror}", 1) from error
        finally:
            lines.close()

    def _has_room(self) -> bool:
        return len(self._open) < self._window and self._order.held + self._writer.pending < HELD_BYTES

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._freed.clear()
            await self._freed.wait()

    def _begin(self, line: Line) -> None:
        self._order.begin(line.number)
        task = asyncio.create_task(self._answer(line))
        self._open.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._ended_lines += 1
        self._freed.set()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, RunStopped):
            self._end(error)
        elif error is not None:
            logger.error("a line could not be answered", exc_info=error)
            self._end(RunStopped(f"a line failed in Octavo itself ({error!r})", 1))

    async def _answer(self, line: Line) -> None:
        result = await self._result(line)
        if result.error is not None and self._options.strict:
            raise RunStopped(f"--strict, and line {line.number} of INPUT has no answer: {result.error.rstrip('.')}", 1)
        self._progress.finished(result.completion_tokens, result.error is not None)
        if ready := self._order.finish(result):
            self._writer.put(b"".join(one.text for one in ready))

    def _more_ended(self, than: int) -> bool:
        return self._ended_lines > than

    async def _result(self, line: Line) -> Result:
        try:
            if line.raw is None:
                most = line_bytes(self._config)
                raise LineError(f"The line has more than {most} bytes; a shorter one would work.", "line_too_long")
            call = read_call(line.raw, line.number, self._options.defaults, self._config)
        except LineError as error:
            return refusal(line.number, error)
        while True:
            ended = self._ended_lines
            status, content = await self._api.post(call.url, call.body, request_id(line.number))
            if status != 429 or not self._service.client.num_open():
                break
            # The queue is full of this run's own lines: when one of them has ended there may be room.
            await self._until(partial(self._more_ended, ended))
        if self._service.client.failure is not None:
            # It is the engine that has no answer, not the line.
            raise RunStopped(self._service.client.failure, 1)
        return answer(call, status, content)
