"""The engine core: client messages in, one step at a time, one message out. No I/O, no threads (but the tier's).

Owns the KV manager, the scheduler and the steps in flight; is lent an executor. The engine's main loop (or `LLM`)
calls `handle` for what arrived and `step` while `has_work`. `depth` steps are kept in flight: one on a CPU, where a
step owns all cores.

Every `NewRequest` gets exactly one final delta: an answer, or an error that says what to do. There is no off switch.
"""

from __future__ import annotations

import logging
from collections import deque

from octavo.config import EngineConfig
from octavo.engine.gate import OFF, StructureGate
from octavo.kvcache.manager import make_kv
from octavo.kvcache.pins import PinBook
from octavo.kvcache.tiers.tier import Tier
from octavo.scheduler.admission import Limits, refusal
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.speculation import make_speculation
from octavo.scheduler.state import RequestState
from octavo.speculative.factory import make_proposer
from octavo.speculative.proposer import Proposer
from octavo.structure.protocol import Structures
from octavo.types import (
    Abort,
    ClientMessage,
    Drain,
    EngineStats,
    ErrorCode,
    Executor,
    FinishReason,
    NewRequest,
    PinReply,
    PinRequest,
    Ready,
    Shutdown,
    StepHandle,
    StepOutput,
)

log = logging.getLogger(__name__)

_LOAD_SECONDS = 0.005
"""While every request waits for blocks from a tier, messages are looked at this often."""


class EngineCore:
    """See the module."""

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        depth: int = 1,
        tier: Tier | None = None,
        proposer: Proposer | None = None,
        structures: Structures | None = None,
    ) -> None:
        """config is resolved; the executor was made from it. tier: of the KV cache, below the executor's pages.

        proposer: instead of what the configuration asks for (tests). structures: None where they are switched off.
        """
        length = config.model.max_model_len
        assert length is not None, "the engine takes a resolved configuration"
        assert depth >= 1
        most = config.scheduler.max_num_batched_tokens if config.scheduler.chunked_prefill else length
        lead = depth * max(most, config.scheduler.max_num_batched_tokens)
        self.kv = make_kv(config.kv, executor.info, executor.num_blocks, length, lead, tier)
        self.pins = PinBook(self.kv, config.kv.pin_tokens)
        speculation = make_speculation(config.speculative, proposer or make_proposer(config.speculative))
        self.scheduler = Scheduler(config.scheduler, self.kv, speculation=speculation)
        self.gate = StructureGate(structures)
        self._config = config
        self._executor = executor
        self._depth = depth
        self._limits = Limits(
            max_model_len=length,
            pool_tokens=self.kv.capacity_tokens,
            max_context=executor.info.max_context,
            vocab_size=executor.info.vocab_size,
            max_waiting=config.scheduler.max_queue_requests,
            priorities=config.scheduler.order == "priority",
        )
        self._flight: deque[StepHandle] = deque()
        self._replies: list[PinReply] = []
        self._arrivals = 0
        self._draining = False

    def ready(self, report: tuple[str, ...] = ()) -> Ready:
        """The message that says what the engine can take. report: start-up lines."""
        return Ready(
            info=self._executor.info,
            num_blocks=self._executor.num_blocks,
            block_size=self.kv.block_size,
            max_model_len=self._limits.max_total,
            report=report,
        )

    @property
    def has_work(self) -> bool:
        """`step()` has something to do or to say."""
        return self.scheduler.has_work or len(self.gate) > 0

    @property
    def finished(self) -> bool:
        """The engine was drained or shut down, and everybody has an answer."""
        return self._draining and not self.has_work

    def handle(self, message: ClientMessage) -> None:
        """Takes one message in; what it causes to be said comes with the next step."""
        if isinstance(message, NewRequest):
            self._add(message)
        elif isinstance(message, Abort):
            for request_id in message.request_ids:
                request = self.scheduler.find(request_id)
                if request is not None:
                    self.scheduler.finish(request, FinishReason.ABORT)
                elif self.gate.take_out(request_id):
                    self.scheduler.turn_away(request_id)
        elif isinstance(message, Drain):
            self.drain()
        elif isinstance(message, PinRequest):
            self._replies.append(self.pins.answer(message))
        else:
            assert isinstance(message, Shutdown)
            self.drain()
            for request in self.scheduler.live():
                self.scheduler.finish(request, FinishReason.ABORT)
            for request_id in self.gate.everybody():
                self.gate.take_out(request_id)
                self.scheduler.turn_away(request_id)

    def drain(self) -> None:
        """Takes no more requests; the open ones go on."""
        self._draining = True

    def take_replies(self) -> list[PinReply]:
        """Answers to messages that are no requests; they do not wait for a step."""
        replies, self._replies = self._replies, []
        return replies

    def step(self) -> StepOutput | None:
        """Plans and submits a step, retires the oldest once enough are in flight; returns what there is to say."""
        self.pins.expire()
        for looked in self.gate.looked():
            if looked.error is None:
                self._enter(looked.request)
            else:
                self.scheduler.refuse(looked.request.request_id, looked.error, looked.code)
        plan = self.scheduler.plan()
        if plan is not None:
            self._flight.append(self._executor.submit(plan))
        retired = bool(self._flight) and (plan is None or len(self._flight) >= self._depth)
        if retired:
            self.scheduler.retire(self._flight.popleft().result())
        if self._config.validate_kv:
            self.validate()
        deltas = self.scheduler.take_deltas()
        if plan is None and not retired and not deltas and self.kv.loading:
            self.kv.tier.wait(_LOAD_SECONDS)
        elif plan is None and not retired and not deltas and len(self.gate):
            self.gate.wait(_LOAD_SECONDS)
        return StepOutput(deltas, self.stats()) if deltas or retired else None

    def validate(self) -> None:
        """Recomputes every block count from scratch; for an idle moment."""
        self.kv.validate()
        self.pins.validate()

    def close(self, keep: bool = True) -> None:
        """Ends the tier below the pages; keep: it takes what the prefix cache still holds, in bounded time."""
        self.kv.tier.close(self.kv.kept() if keep else ())

    def stats(self) -> EngineStats:
        """A snapshot; counters only grow."""
        disk = self.kv.tier.stats()
        counters = self.scheduler.counters
        drafts = self.scheduler.speculation.counters
        groups = self.kv.groups
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_blocks_total=sum(group.pool.total for group in groups),
            kv_blocks_free=sum(group.available for group in groups),
            kv_blocks_cached=sum(len(group.cache) for group in groups),
            steps=counters.steps,
            prompt_tokens=counters.prompt,
            cached_prompt_tokens=counters.cached,
            prefix_queries=counters.queries if self._config.kv.prefix_cache else 0,
            resumed_tokens=counters.resumed,
            refused_hits=sum(group.cache.mismatches for group in groups),
            evicted_blocks=sum(group.cache.evictions for group in groups),
            pinned_blocks=self.pins.blocks,
            recomputed_tokens=counters.recomputed,
            generated_tokens=counters.generated,
            preemptions=counters.preemptions,
            step_seconds=counters.seconds,
            disk_hits=disk.hits,
            disk_tokens=disk.tokens,
            disk_read_bytes=disk.read_bytes,
            disk_read_seconds=disk.read_seconds,
            disk_written_bytes=disk.written_bytes,
            disk_dropped_blocks=disk.dropped,
            disk_errors=disk.errors,
            disk_bytes=disk.bytes,
            disk_on=int(disk.on),
            predicted_seconds=counters.predicted,
            waiting_tokens=self.scheduler.waiting.tokens,
            step_budget=self.scheduler.step_budget,
            step_prices=self.scheduler.model.prices,
            drafts_checked=tuple(drafts.checked),
            drafts_accepted=tuple(drafts.accepted),
            draft_seconds=drafts.seconds,
            draft_saved_seconds=drafts.saved,
        )

    def _add(self, message: NewRequest) -> None:
        request_id = message.request_id
        if self.scheduler.find(request_id) is not None or self.gate.holds(request_id):
            # A reply under this id would end the live request in the client, so the duplicate gets none.
            log.error("request id %d is in use; the second request was dropped", request_id)
            return
        if self._draining:
            self.scheduler.refuse(request_id, "The engine is shutting down; send the request again in a moment.")
            return
        waiting = self.scheduler.waiting
        crowd = waiting.crowd(message.tenant) + len(self.gate)
        shared = crowd < len(waiting) + len(self.gate)
        refused = refusal(message, self._limits, crowd, shared=shared)
        if refused is not None:
            self.scheduler.refuse(request_id, refused.error, refused.code)
            return
        if message.params.structure is None or message.pooling is not None:
            self._enter(message)
        elif self.gate.on:
            self.gate.enter(message)
        else:
            self.scheduler.refuse(request_id, OFF, ErrorCode.BAD_STRUCTURE)

    def _enter(self, message: NewRequest) -> None:
        sequence = self.kv.sequence(message.adapter, message.tenant, message.cache_salt, message.fresh)
        eos = self._executor.info.eos_token_ids
        self.scheduler.add(RequestState(message, self._arrivals, self._limits.max_total, eos, sequence))
        self._arrivals += 1
