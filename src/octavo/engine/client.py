"""The engine as the server sees it: requests in, one stream of deltas for each submission out.

Owns the table of open requests, each with its `NewRequest` and the tokens it has received. Life: `start` spawns the
engine and returns its `Ready`; `submit` opens a `DeltaStream`; every request gets exactly one final delta. When the
engine dies, or is stuck (watch.py), it is restarted and the open requests are sent again with the tokens they already
have, so that their streams go on; suspects.py says who is sent when, and who is failed. A new engine with another
model, or one that cannot start, is given up instead. `close` ends the engine.
All methods belong to one event loop. One reader callback handles one engine message for all requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from octavo.config import EngineConfig
from octavo.engine.asked import Asked, NoAnswer
from octavo.engine.channel import ChannelError, FrameReader, encode_frame
from octavo.engine.identity import difference
from octavo.engine.journal import Reading
from octavo.engine.streams import DeltaStream as DeltaStream
from octavo.engine.supervisor import ENGINE_COMMAND, Backoff, Death, EngineProcess
from octavo.engine.suspects import MAX_ALONE, Suspects
from octavo.engine.watch import TICK_SECONDS, Watch
from octavo.types import (
    Abort,
    ClientMessage,
    Drain,
    EngineMessage,
    EngineStats,
    Fatal,
    FinishReason,
    ModelInfo,
    NewRequest,
    PinReply,
    PinRequest,
    Progress,
    Ready,
    Shutdown,
    StepOutput,
    TokenDelta,
)

logger = logging.getLogger(__name__)

MAX_FAILED_STARTS = 5
"""Consecutive starts that fail before the engine is given up."""
_EXIT_SECONDS = 3.0
_LINGER_SECONDS = 0.5
"""An engine that has closed its channel has so long to end."""
_NARROWING_DELAY = 0.2
"""Longest wait before a restart while it is being found out which request kills engines."""


class EngineFailed(Exception):
    """The engine cannot start; the message is one sentence for the user."""


class ModelChanged(EngineFailed):
    """The engine that was started again has another model."""


class Health(StrEnum):
    """How the engine is."""

    OK = "ok"
    STARTING = "starting"
    RESTARTING = "restarting"
    """It died; the next one loads. Requests wait."""
    STUCK = "stuck"
    """Its heartbeat is late; it goes on, or is ended and started again."""
    FAILED = "failed"
    """Given up for good."""


class _OpenRequest:
    """What it takes to send a request again."""

    __slots__ = ("generated", "request", "saw_cached", "scored", "stream")

    def __init__(self, request: NewRequest, stream: DeltaStream) -> None:
        self.request = request
        self.stream = stream
        self.generated: list[int] = list(request.generated)
        self.scored = request.scored
        self.saw_cached = False

    def again(self) -> NewRequest:
        return msgspec.structs.replace(self.request, generated=list(self.generated), scored=self.scored)


class _Counts(Mapping[int, int]):
    """How many tokens each open request has, in the order of arrival."""

    def __init__(self, table: dict[int, _OpenRequest]) -> None:
        self._table = table

    def __getitem__(self, request_id: int) -> int:
        return len(self._table[request_id].generated)

    def __iter__(self) -> Iterator[int]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


class AsyncEngineClient:
    """One engine process and its open requests."""

    def __init__(
        self,
        config: EngineConfig,
        on_progress: Callable[[Progress], None] | None = None,
        on_step: Callable[[StepOutput], None] | None = None,
        on_restart: Callable[[int], None] | None = None,
        on_failed: Callable[[str], None] | None = None,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        """on_failed: told once, when a running engine is given up for good."""
        self._config = config
        self._on_progress = on_progress
        self._on_step = on_step
        self._on_restart = on_restart
        self._on_failed = on_failed
        self._command = command
        self._process: EngineProcess | None = None
        self._transport: asyncio.Transport | None = None
        self._open: dict[int, _OpenRequest] = {}
        self._counts = _Counts(self._open)
        self._asked = Asked()
        self._followers: dict[int, list[int]] = {}
        """First choice -> the other choices of its prompt, not yet sent."""
        self._suspects = Suspects()
        self._next_id = 0
        self._started: asyncio.Future[Ready] | None = None
        self._restart: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._watch = Watch(0)
        """Off while there is no engine."""
        self._closing = False
        self._fatal: str | None = None
        self._backoff = Backoff()
        self._info: ModelInfo | None = None
        """Of the first start."""
        self.ready: Ready | None = None
        """Set while the engine can take requests."""
        self.failure: str | None = None
        """Set once the engine is given up for good."""
        self.stats: EngineStats | None = None
        """The engine's newest snapshot; None in a new life of the engine."""
        self.restarts = 0

    # --- life ---------------------------------------------------------------------------------------

    async def start(self, process: EngineProcess | None = None, config: EngineConfig | None = None) -> Ready:
        """Spawns the engine, or adopts a spawned one, and waits until it can take requests.

        `config` is the one to use from now on, where it was not known whole before. EngineFailed says why it cannot.
        """
        self._config = config or self._config
        return await self._adopt(process or EngineProcess.spawn(self._command, self._config))

    async def _adopt(self, process: EngineProcess) -> Ready:
        loop = asyncio.get_running_loop()
        self._fatal = None
        self._started = loop.create_future()
        self._process = process
        self._watch = Watch(self._config.stuck_seconds)
        if self._watcher is None:
            self._watcher = loop.create_task(self._keep_watch())
        self._transport, _ = await loop.create_connection(lambda: _Reader(self), sock=process.channel)
        return await self._started

    async def close(self, seconds: float = _EXIT_SECONDS) -> None:
        """Fails what is open and ends the engine, by force if it does not go within `seconds`."""
        self._closing = True
        loading = self.ready is None
        self.ready = None
        for task in (self._restart, self._watcher):
            if task is not None:
                task.cancel()
        self.abort_all("the server is shutting down")
        process = self._process
        if process is None:
            return
        if loading:
            process.kill()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(Shutdown()))
        if not await asyncio.to_thread(process.wait, seconds):
            process.kill()
            await asyncio.to_thread(process.wait, seconds)
        if self._transport is not None:
            self._transport.close()

    def kill(self) -> None:
        """Ends the engine now."""
        self._closing = True
        self.ready = None
        if self._process is not None:
            self._process.kill()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def health(self) -> Health:
        """From the heartbeat, and from what the supervisor is doing."""
        if self.failure is not None:
            return Health.FAILED
        if self.ready is None:
            return Health.STARTING if self._info is None else Health.RESTARTING
        return Health.STUCK if self._watch.late else Health.OK

    # --- requests -----------------------------------------------------------------------------------

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def num_open(self) -> int:
        return len(self._open)

    def submit(self, requests: Sequence[NewRequest]) -> DeltaStream:
        """Sends requests (all of one user's call); their deltas come in one stream.

        Of the choices of one prompt the first goes ahead, and the others follow with its first token: by then the
        prompt is in the prefix cache, and is computed once. While the engine is started again all of them wait.
        """
        stream = DeltaStream((request.request_id for request in requests), self.abort)
        leader: int | None = None
        for request in requests:
            assert request.request_id not in self._open, "request ids are unique"
            self._open[request.request_id] = _OpenRequest(request, stream)
            if request.choice == 0 or leader is None:
                leader = request.request_id
                self._admit(leader)
            else:
                self._followers.setdefault(leader, []).append(request.request_id)
        if self.failure is not None or self._closing:
            self.abort_all(self.failure or "the server is shutting down")
        return stream

    async def generate(self, request: NewRequest) -> AsyncIterator[TokenDelta]:
        """One request's deltas; leaving the iteration early aborts it."""
        stream = self.submit([request])
        try:
            async for delta in stream:
                yield delta
        finally:
            stream.close()

    async def ask(self, make: Callable[[int], PinRequest]) -> PinReply:
        """The engine's answer to what is no request; NoAnswer where it cannot give one."""
        if self.ready is None:
            raise NoAnswer("The engine is being started; try again in a moment.")
        return await self._asked.ask(make, self._write)

    def abort(self, request_ids: list[int]) -> None:
        """Forgets open requests and ends them in the engine; unknown ids are ignored."""
        known = [request_id for request_id in request_ids if self._open.pop(request_id, None) is not None]
        if known and self.ready is not None:
            self._write(Abort(known))
        for request_id in request_ids:
            self._release(request_id)
        self._send(self._suspects.left(request_ids))

    def abort_all(self, reason: str) -> None:
        """Ends every open request with a final delta that names the reason."""
        records = list(self._open.values())
        self.abort(list(self._open))
        for record in records:
            record.stream.push(
                TokenDelta(record.request.request_id, [], finish=FinishReason.ABORT, error=reason, cached_tokens=None)
            )

    async def drain(self, seconds: float, reason: str) -> None:
        """Waits until nothing is open, `seconds` at most; then aborts the rest and lets the engine go."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self._open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self.abort_all(reason)
        self._closing = True
        if self.ready is not None:
            self._write(Drain())

    def _release(self, leader: int) -> None:
        """Sends the choices that waited for this one, where they are still wanted."""
        for request_id in self._followers.pop(leader, ()):
            if request_id in self._open:
                self._admit(request_id)

    def _admit(self, request_id: int) -> None:
        """Sends a request for the first time, unless it is to wait; then `_send` has it later."""
        if self.ready is not None and self._suspects.admit(request_id):
            self._write(self._open[request_id].again())

    def _send(self, request_ids: Iterable[int]) -> None:
        """Sends requests, with the tokens that they already have; to no engine, while there is none."""
        for request_id in request_ids if self.ready is not None else ():
            self._write(self._open[request_id].again())

    def _write(self, message: ClientMessage) -> None:
        assert self._transport is not None
        self._transport.write(encode_frame(message))

    # --- what the engine says -----------------------------------------------------------------------

    def handle(self, message: EngineMessage) -> None:
        """One message from the engine."""
        if isinstance(message, StepOutput):
            self._handle_step(message)
        elif isinstance(message, Ready):
            self._handle_ready(message)
        elif isinstance(message, Progress):
            if self._on_progress is not None:
                self._on_progress(message)
        elif isinstance(message, PinReply):
            self._asked.answer(message)
        elif isinstance(message, Fatal):
            self._fatal = message.message

    def _handle_step(self, output: StepOutput) -> None:
        self.stats = output.stats
        if self._on_step is not None:
            self._on_step(output)
        table = self._open
        suspicious = self._suspects.narrowing
        for delta in output.deltas:
            record = table.get(delta.request_id)
            if record is None:
                continue
            record.generated.extend(delta.tokens)
            record.scored += len(delta.prompt_logprobs or ())
            if delta.request_id in self._followers:
                self._release(delta.request_id)
            if suspicious and delta.finish is None:
                self._send(self._suspects.progressed(delta.request_id, self._counts))
            if delta.finish is not None:
                del table[delta.request_id]
                self._send(self._suspects.left([delta.request_id]))
            if delta.cached_tokens is not None:
                if record.saw_cached:
                    delta = msgspec.structs.replace(delta, cached_tokens=None)
                record.saw_cached = True
            record.stream.push(delta)

    def _handle_ready(self, ready: Ready) -> None:
        self._info = self._info or ready.info
        changed = difference(self._info, ready.info, self._config.model.path)
        if changed is not None:
            self._refuse(changed)
            return
        self.ready = ready
        self._watch = Watch(self._config.stuck_seconds)
        self._backoff.ready()
        if self._started is not None and not self._started.done():
            self._started.set_result(ready)
        self._followers.clear()
        # What is short to compute again goes first: of many streams most wait less.
        given = self._suspects.arrange(self._counts)
        self._send(sorted(given, key=lambda each: len(self._open[each].request.prompt) + self._counts[each]))

    def _refuse(self, changed: str) -> None:
        """Gives the engine up: what is open cannot go on with another model."""
        assert self._process is not None and self._started is not None
        self._process.kill()
        self._started.set_exception(ModelChanged(changed))
        self._give_up(changed)

    def _give_up(self, reason: str) -> None:
        self.failure = reason
        self.abort_all(reason)
        if self._on_failed is not None:
            self._on_failed(reason)

    # --- deaths -------------------------------------------------------------------------------------

    async def _keep_watch(self) -> None:
        """Looks after trials that take too long, and ends engines that are stuck; as long as the client lives."""
        loop = asyncio.get_running_loop()
        while not self._closing and self.failure is None:
            await asyncio.sleep(TICK_SECONDS)
            process = self._process
            if process is None:
                continue
            if self.ready is not None:
                self._send(self._suspects.expired())
            reading = process.reading()
            self._watch.look(loop.time(), reading)
            if self._watch.stuck:
                why = f"a signal from its parent: nothing moved for {self._watch.waited:.1f} s {self._doing(reading)}"
                logger.error("the engine is stuck: it is ended; where it stands is on its standard error")
                self.ready, self._watch = None, Watch(0)
                await asyncio.to_thread(process.end_stuck, why)

    def _doing(self, reading: Reading | None) -> str:
        if self.ready is None:
            return "while it loaded; a higher --stuck-seconds gives it longer"
        return f"in step {reading.steps}" if reading is not None and reading.in_step else "between steps"

    def lost(self) -> None:
        """The channel has ended."""
        self.ready, self._watch = None, Watch(0)
        self._asked.fail()
        if self._closing or self.failure is not None or self._process is None:
            return
        self._restart = asyncio.get_running_loop().create_task(self._after_death(self._process))

    async def _after_death(self, process: EngineProcess) -> None:
        try:
            death = await asyncio.to_thread(process.reap, _LINGER_SECONDS)
            reason = self._fatal or f"the engine ended with {death.how}"
            if self._started is not None and not self._started.done():
                self._started.set_exception(EngineFailed(reason))
                return
            logger.error("the engine died (%s); %s open", reason, _requests(len(self._open), "was", "were"))
            self._blame(process, death, reason)
            await self._start_again(process, reason)
        except Exception as error:  # whatever it is, nobody may wait for an engine that does not come
            logger.exception("the engine could not be started again")
            self._give_up(f"the engine cannot start again: {type(error).__name__}: {error}")

    async def _start_again(self, process: EngineProcess, reason: str) -> None:
        for _ in range(MAX_FAILED_STARTS):
            await asyncio.sleep(self._backoff.delay(_NARROWING_DELAY if self._suspects.narrowing else None))
            if self._closing:
                return
            try:
                self.stats = None
                process = EngineProcess.spawn(self._command, self._config, process)
                await self._adopt(process)
            except ModelChanged as error:
                logger.error("the engine cannot go on: %s", error)
                return
            except (EngineFailed, OSError) as error:
                reason = str(error)
                logger.error("the engine cannot start again: %s", reason)
                continue
            self.restarts += 1
            if self._on_restart is not None:
                self._on_restart(self.restarts)
            logger.warning("the engine was started again; %s on", _requests(len(self._open), "goes", "go"))
            return
        self._give_up(f"the engine cannot start again: {reason}")

    def _blame(self, process: EngineProcess, death: Death, reason: str) -> None:
        """Says what the death says against whom, and fails those whom it convicts."""
        reading = process.reading()
        step = reading.requests if reading is not None and reading.in_step else None
        for request_id in self._suspects.died(step, self._counts, death.cause):
            record = self._open.pop(request_id)
            self._suspects.left([request_id])
            error = f"the engine died {MAX_ALONE} times with this request alone in it; last: {reason}"
            logger.error("a request is failed: %s", error)
            record.stream.push(TokenDelta(request_id, [], finish=FinishReason.ERROR, error=error))


def _requests(count: int, one: str, many: str) -> str:
    """A count with its verb."""
    return f"{count} request {one}" if count == 1 else f"{count} requests {many}"


class _Reader(asyncio.Protocol):
    """Receives frames and hands decoded messages to the client."""

    def __init__(self, client: AsyncEngineClient) -> None:
        self._client = client
        self._frames = FrameReader()
        self._decoder: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = [self._decoder.decode(frame) for frame in self._frames.feed(data)]
        except (ChannelError, msgspec.MsgspecError) as error:
            logger.error("the engine sent what is not a message: %s", error)
            assert self._transport is not None
            self._transport.close()
            return
        for message in messages:
            self._client.handle(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost()
