"""The state behind the routes: the engine's client, the model's text side, and whether requests are taken.

Life: starting (the model is downloaded if need be, the engine loads) -> ready -> draining (no new requests, open ones
finish) -> closed. A start that fails, and a model whose files have
changed when its engine is started again, are told in one sentence for the user.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from octavo.config import ConfigError, EngineConfig, ModelConfig, ServerConfig
from octavo.engine.client import AsyncEngineClient, EngineFailed, Health
from octavo.engine.supervisor import ENGINE_COMMAND, EngineProcess
from octavo.models.files import sentence
from octavo.models.spec import ModelError
from octavo.models.tokenizer import load_tokenizer
from octavo.observability.metrics import Metrics
from octavo.server.answer import StalledSends
from octavo.server.backlog import Backlog
from octavo.server.body import Buffered
from octavo.server.errors import ApiError
from octavo.server.gate import Access
from octavo.server.job import Job, JobMaker
from octavo.server.params import ModelLimits
from octavo.server.pins import PinKeeper
from octavo.server.text import ModelText, load_text
from octavo.types import Progress, Ready, SamplingDefaults, StepOutput

logger = logging.getLogger(__name__)

Fetch = Callable[[Callable[[str, float | None], None]], ModelConfig]
"""Gets the model's files, and gives them in place of its name. Told what to report to."""

STOPPING = "The server is shutting down; send the request again in a moment."


class Service:
    """See the module. All methods belong to the event loop of the server."""

    def __init__(
        self,
        engine: EngineConfig,
        config: ServerConfig,
        on_ready: Callable[[Ready], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        command: Sequence[str] = ENGINE_COMMAND,
        process: EngineProcess | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """process: an engine that was spawned with `engine`; without one, `start` spawns it.

        fetch: what gets the model's files first, where they are not here yet; it may take hours.
        """
        self.engine = engine
        self.config = config
        self.metrics = Metrics()
        self.stalled = StalledSends(config.send_seconds, config.max_queued_tokens)
        self.buffered = Buffered()
        self.access = Access(config)
        self.backlog = Backlog(engine.scheduler)
        self.client = AsyncEngineClient(
            engine,
            on_progress=self._progress,
            on_step=self._step,
            on_restart=self._restarted,
            on_failed=on_failure,
            command=command,
        )
        self.pins = PinKeeper(self.client)
        self.maker: JobMaker | None = None
        self.text: ModelText | None = None
        self.model_name = ""
        self.started_at = 0
        self.sampling = SamplingDefaults()
        """The model's suggestions, once it is loaded."""
        self.draining = False
        self.doing = ""
        """What a start does now, with how much of it is done."""
        self._fetch = fetch
        self._process = process
        self._on_progress = on_progress
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins loading; requests are refused until it is done."""
        self._tasks.append(asyncio.create_task(self._load()))
        self._tasks.append(asyncio.create_task(self.stalled.run()))

    async def _load(self) -> None:
        if self._fetch is not None:
            try:
                model = await _in_thread(partial(self._fetch, self._fetching))
            except (ModelError, OSError) as error:
                if self._on_failure is not None:
                    self._on_failure(sentence(error))
                return
            self.engine = replace(self.engine, model=model)
            self.doing = ""
        text = asyncio.create_task(asyncio.to_thread(self._load_text))
        try:
            ready = await self.client.start(self._process, self.engine)
            self.text = await text
        except (EngineFailed, ConfigError, ModelError, OSError) as error:
            text.cancel()
            if self._on_failure is not None:
                self._on_failure(sentence(error))
            return
        self.model_name = ready.info.name
        self.started_at = int(time.time())
        priorities = self.engine.scheduler.order == "priority"
        limits = ModelLimits(ready.info.num_tokens, ready.max_model_len, ready.info.sampling)
        self.sampling = ready.info.sampling
        self.maker = JobMaker(self.text, limits, ready.info.name, self.config, self.client.new_id, priorities)
        if self._on_ready is not None:
            self._on_ready(ready)

    def _progress(self, progress: Progress) -> None:
        self._fetching(progress.what, progress.fraction)
        if self._on_progress is not None:
            self._on_progress(progress)

    def _fetching(self, what: str, fraction: float | None) -> None:
        self.doing = what if fraction is None else f"{what}: {int(100 * fraction)} %"

    def _load_text(self) -> ModelText:
        text = load_text(
            load_tokenizer(self.engine.model.path),
            self.engine.model.chat_template,
            self.config.tool_parser,
            self.config.reasoning_parser,
        )
        text.check()
        return text

    def _restarted(self, restarts: int) -> None:
        self.metrics.restarted(restarts)
        self.pins.restore()

    def drain(self) -> None:
        """Takes no more requests; open ones have `drain_seconds`, then they are ended with a reason."""
        if not self.draining:
            self.draining = True
            self._tasks.append(asyncio.create_task(self.client.drain(self.config.drain_seconds, STOPPING)))

    async def close(self) -> None:
        self.draining = True
        for task in self._tasks:
            task.cancel()
        self.pins.close()
        await self.client.close()
        if self.text is not None:
            await asyncio.to_thread(self.text.close)

    # --- state --------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """The engine's heart beats, or it is being started (again)."""
        return self.client.health() not in (Health.STUCK, Health.FAILED)

    def status(self) -> str:
        """ready, or why not."""
        if self.client.failure is not None:
            return "failed"
        if self.draining:
            return "draining"
        if self.maker is None:
            return "starting"
        health = self.client.health()
        if health in (Health.RESTARTING, Health.STUCK):
            return health.value
        return "full" if self.backlog.full(self.client.num_open()) else "ready"

    def _step(self, output: StepOutput) -> None:
        self.metrics.step(output)
        self.backlog.step(output)

    def admit(self, tenant: str) -> JobMaker:
        """What makes jobs; 503 where none are made now, 429 where the queue is full whatever comes.

        While the engine is started again, jobs wait for it.
        """
        status = self.status()
        if status in ("ready", "full", Health.RESTARTING, Health.STUCK):
            self.backlog.check(self.client.num_open(), tenant)
            assert self.maker is not None
            return self.maker
        reasons = {
            "starting": f"The model is not ready yet ({self.doing or 'loading'}); try again in a moment.",
            "draining": STOPPING,
            "failed": f"The engine cannot run: {self.client.failure}",
        }
        raise ApiError(reasons[status], status=503, code=status)

    def check_room(self, job: Job) -> None:
        """The queue holds all of a job or nothing of it."""
        self.backlog.check(self.client.num_open(), job.requests[0].tenant, len(job.requests), sum(job.prompt_tokens))


async def _in_thread(work: Callable[[], ModelConfig]) -> ModelConfig:
    """Runs what may take hours in a thread that the process does not wait for when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ModelConfig] = loop.create_future()

    def settle(result: ModelConfig | None, error: BaseException | None) -> None:
        if future.done():
            return
        if result is not None:
            future.set_result(result)
        elif error is not None:
            future.set_exception(error)

    def run() -> None:
        outcome: tuple[ModelConfig | None, BaseException | None]
        try:
            outcome = work(), None
        except BaseException as error:
            outcome = None, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="octavo-fetch", daemon=True).start()
    return await future
