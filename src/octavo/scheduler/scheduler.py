"""The scheduler: decides every step what each request computes, and takes the results in.

One rule: a request has `num_computed` and `num_tokens`, and each step moves the first towards the second under a
token budget. Decodes (one position left) come first, then prompts in chunks; chunked prefill, prefix hits, resuming
after preemption and replay need nothing else. The order of a plan is the batch order on every rank.

Life of a step: `plan()` -> submitted by the engine -> `retire(result)`. More than one may be in flight.
Every request that was added gets exactly one final `TokenDelta`, collected by `take_deltas()`.
What can be switched off is an object of its own: budget.py, chunking.py, policy.py, preemption.py, time_limits.py,
waiting.py, and the prefix cache in kvcache.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from msgspec import structs

from octavo.config import SchedulerConfig
from octavo.kvcache.manager import KVManager
from octavo.scheduler.admission import reserved_growth
from octavo.scheduler.budget import make_budget
from octavo.scheduler.chunking import Place, make_chunking
from octavo.scheduler.draft import Draft, Item, StepRecord
from octavo.scheduler.policy import make_policy
from octavo.scheduler.preemption import choose_victim, make_keeping, make_urgency
from octavo.scheduler.speculation import NoSpeculation, Speculation
from octavo.scheduler.state import RequestState, Status
from octavo.scheduler.step_model import StepTimeModel, load_of
from octavo.scheduler.time_limits import TimeLimits
from octavo.scheduler.waiting import Waiting, by_age, make_waiting, take_out
from octavo.types import ErrorCode, FinishReason, NewSlot, SeqOutput, SeqWork, StepPlan, StepResult, TokenDelta

_TIMED_ROWS = 64
"""Rows of prompts that a step has at least to say how fast they are computed."""


class Counters:
    """What was done so far; only ever grows."""

    __slots__ = (
        "cached",
        "generated",
        "predicted",
        "preemptions",
        "prompt",
        "queries",
        "recomputed",
        "resumed",
        "seconds",
        "steps",
    )

    def __init__(self) -> None:
        self.steps = self.prompt = self.cached = self.recomputed = self.generated = self.preemptions = 0
        self.queries = self.resumed = 0
        self.seconds = self.predicted = 0.0


class Scheduler:
    """Owns all live requests. `running` is kept in order of age, as is `waiting`, which says who is next."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        limits: TimeLimits | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """limits: for tests with a clock of their own. speculation: None is off."""
        self.kv = kv
        self.waiting: Waiting = make_waiting(config)
        self.running: list[RequestState] = []
        self.counters = Counters()
        self._config = config
        self.model = StepTimeModel()
        self.step_budget = config.max_num_batched_tokens
        """Tokens that the newest step could have."""
        self._budget = make_budget(config, self.model)
        self._policy = make_policy(config.policy)
        self._urgency = make_urgency(config)
        self._keeping = make_keeping(config, kv)
        whole = [group.pool.total for group in kv.groups if group.window is None]
        self._watermark = int(config.watermark * min(whole, default=0))
        """Blocks that a new request leaves for those that run."""
        self._chunking = make_chunking(config.chunked_prefill)
        self._limits = limits or TimeLimits(config.max_queue_seconds)
        self.speculation = speculation or NoSpeculation()
        self._live: dict[int, RequestState] = {}
        self._slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._released: list[int] = []
        self._flight: deque[StepRecord] = deque()
        self._next_step = 0
        self._turn = 0
        self._deltas: list[TokenDelta] = []

    # --- requests enter and leave ---

    def add(self, request: RequestState) -> None:
        """Takes a request in. One that is complete already (a replay) gets its final delta at once."""
        request_id = request.request.request_id
        assert request_id not in self._live, f"request {request_id} is live"
        pooled = request.request.pooling is not None
        complete = request.num_generated or not (request.draws or request.scores_left or pooled)
        reason = request.ending() if complete else None
        self._live[request_id] = request
        self.waiting.add(request)
        if reason is not None:
            self.finish(request, reason)
        else:
            self._limits.watch(request)

    def find(self, request_id: int) -> RequestState | None:
        return self._live.get(request_id)

    def live(self) -> list[RequestState]:
        return list(self._live.values())

    def finish(
        self,
        request: RequestState,
        reason: FinishReason,
        delta: TokenDelta | None = None,
        error: str | None = None,
        code: ErrorCode | None = None,
    ) -> None:
        """Ends a live request in any state: its final delta, its slot, its blocks. delta: its last tokens."""
        if request.status is Status.RUNNING:
            take_out(self.running, request)
        else:
            self.waiting.remove(request)
            self._keeping.forget(request)
        self._leave_slot(request)
        self.kv.release(request.kv)
        request.finish()
        self.speculation.forget(request)
        del self._live[request.request.request_id]
        tokens = delta.tokens if delta is not None else []
        stop = tokens[-1] if reason is FinishReason.STOP and tokens else None
        self._deltas.append(
            structs.replace(
                delta or TokenDelta(request.request.request_id, []),
                finish=reason,
                stop_token=stop,
                error=error,
                cached_tokens=_take_cached(request),
                code=code,
            )
        )

    def take_deltas(self) -> list[TokenDelta]:
        """What happened since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def turn_away(self, request_id: int) -> None:
        """The final delta of a request that was aborted before it was added."""
        self._deltas.append(TokenDelta(request_id, [], finish=FinishReason.ABORT))

    def refuse(self, request_id: int, error: str, code: ErrorCode | None = None) -> None:
        """The final delta of a request that was never added."""
        self._deltas.append(TokenDelta(request_id, [], finish=FinishReason.ERROR, error=error, code=code))

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._flight or self._deltas or self.kv.loading)

    # --- one step is planned ---

    def plan(self) -> StepPlan | None:
        """The next step, or None where nothing can be computed now. Counters move here."""
        for over in self._limits.expired():
            self.finish(over.request, FinishReason.ERROR, error=over.error, code=over.code)
        if self.kv.tier.on or self.kv.loading:
            self._take_loads()
        for request in self._policy.at_once(self.waiting, self.running):
            if not self._admit(request):
                break
        decodes, prompts = self._split()
        self.step_budget, most = self._budget.of(decodes, prompts)
        draft = Draft(self.step_budget)
        if prompts or self.waiting:
            held_back = min(most, self._chunking.hold_back(prompts, len(decodes), draft.budget))
            decodes = self._plan_decodes(draft, decodes, held_back)
            self._plan_prompts(draft, prompts)
        self._plan_decodes(draft, decodes, 0)
        if draft.empty:
            assert self._flight or self.kv.loading or not self._live, (
                "requests wait, nothing runs and nothing was admitted"
            )
            return None
        self.speculation.draft(draft, self.kv, self.model)
        return self._submit(draft)

    def _take_loads(self) -> None:
        """Requests whose blocks have come from the tier go on behind them."""
        self.kv.take_loads()
        for request in self.running:
            load = request.kv.load
            if load is not None and load.done:
                self.kv.loaded(request.kv, request.tokens)
                self._found(request)

    def _split(self) -> tuple[list[RequestState], list[RequestState]]:
        """Running requests that decode, and those with a prompt to compute; those that draw a token are left out.

        Who decodes has one position left, or a few behind which there are tokens that were forced.
        """
        decodes: list[RequestState] = []
        prompts: list[RequestState] = []
        for request in self.running:
            if not request.drawing and request.kv.load is None:
                (decodes if request.remaining == 1 or request.progressed else prompts).append(request)
        return decodes, prompts

    def _plan_decodes(self, draft: Draft, decodes: list[RequestState], held_back: int) -> list[RequestState]:
        """Puts decodes into the step while it has more room than `held_back`; returns those that were not looked at."""
        room = draft.budget - held_back
        if sum(request.remaining for request in decodes) > room:
            decodes.sort(key=lambda request: request.turn)
        for index, request in enumerate(decodes):
            if draft.left <= held_back:
                return decodes[index:]
            if request.status is not Status.RUNNING:
                continue
            count = min(request.remaining, draft.left - held_back)
            if request.num_computed + count <= request.kv.capacity or self._grow(request, count, draft):
                draft.add(request, count)
        return []

    def _grow(self, request: RequestState, count: int, draft: Draft) -> bool:
        """Room for the next positions, taken from another request if need be; False: not in this step."""
        while not self.kv.reserve(request.kv, request.tokens, request.num_computed + count):
            if self.kv.has_parked:
                return False
            if self._keeping.take(request):
                continue
            victim = choose_victim(request, self.running)
            if victim is None:
                return False
            assert len(self.running) > 1, "a request alone fits the pool to its end"
            self._preempt(victim, draft)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: RequestState, draft: Draft) -> None:
        draft.drop(victim)
        take_out(self.running, victim)
        self._leave_slot(victim)
        self._keeping.keep(victim)
        victim.preempt()
        self.waiting.add(victim)
        self.counters.preemptions += 1

    def _plan_prompts(self, draft: Draft, prompts: list[RequestState]) -> None:
        if draft.left <= 0:
            return
        queue = [request for request in prompts if request.status is Status.RUNNING]
        places = self._config.max_num_seqs - len(self.running)
        candidates = self._policy.with_budget(self.waiting, max(1, places))
        admitting = True
        if candidates and (places <= 0 or not queue or candidates[0].order < min(map(by_age, queue))):
            first = candidates.pop(0)
            admitting = self._admit(first) or self._admit_urgent(first, draft)
            queue = [request for request in queue if request.status is Status.RUNNING]
            if admitting and first.kv.load is None:
                queue.append(first)
        queue.sort(key=by_age)
        line = queue[:1] + sorted(queue[1:] + candidates, key=self._place)
        oldest: RequestState | None = None
        for request in line:
            if draft.left <= 0:
                break
            if request.status is not Status.RUNNING:
                if oldest is not None and not self._chunking.take(request.remaining, draft.left):
                    continue
                admitting = admitting and self._admit(request)
                if not admitting or request.kv.load is not None:
                    continue
            if oldest is None:
                oldest = request
                count = self._chunking.claim(request.remaining, draft.left, draft.empty)
            else:
                count = self._chunking.take(request.remaining, draft.left)
            if count:
                draft.add(request, count)
        if oldest is not None:
            draft.extend(oldest)

    def _place(self, request: RequestState) -> Place:
        """Where a prompt that is not the oldest stands in the step."""
        return self._chunking.place(request, self.waiting.rank(request))

    def _admit(self, request: RequestState) -> bool:
        """Reserves pages for all that the request knows, cached ones first; False: there is no room now."""
        head = self.waiting.first()
        # The last place is the first one's.
        if len(self.running) + (request is not head) >= self._config.max_num_seqs:
            return False
        growth = reserved_growth(request, self.running)
        if request is not head:
            for kv, tokens in {head.kv: len(head.tokens), **reserved_growth(head, self.running)}.items():
                growth[kv] = max(tokens, growth.get(kv, 0))
        spare = self._watermark if self.running and not request.preemptions else 0
        while not self.kv.reserve(request.kv, request.tokens, len(request.tokens), growth, spare):
            short = self.kv.missing(request.kv, len(request.tokens), growth, spare)
            if request is not head or self.kv.has_parked or (self.running and short > self._keeping.held(request)):
                return False
            if not self._keeping.take(request):
                return False
        self.waiting.remove(request)
        self._keeping.forget(request)
        insort(self.running, request, key=by_age)
        request.admit()
        self._found(request)
        if not request.preemptions:
            self.counters.queries += 0 if request.request.generated or request.kv.fresh else request.num_prompt
            self.waiting.charge(request, request.num_prompt - min(request.num_prompt, request.num_computed), 0)
        return True

    def _admit_urgent(self, request: RequestState, draft: Draft) -> bool:
        """Sends less important requests away where that makes room for the first of the queue."""
        victims = self._urgency.victims(request, self.running)
        if not victims or request is not self.waiting.first():
            return False
        most = self._keeping.held(request) + sum(victim.kv.num_blocks for victim in victims)
        if self.kv.missing(request.kv, len(request.tokens)) > most:
            return False
        for victim in victims:
            if self.kv.has_parked:
                return False
            self._preempt(victim, draft)
            if self._admit(request):
                return True
        return False

    def _found(self, request: RequestState) -> None:
        """The request starts behind what the prefix cache holds, its tiers included."""
        hits, resumed = request.start()
        self.counters.cached += hits
        self.counters.resumed += resumed

    def _submit(self, draft: Draft) -> StepPlan:
        step_id = self._next_step
        self._next_step += 1
        items = draft.items()
        new: list[NewSlot] = []
        work: list[SeqWork] = []
        for item in items:
            item.settle()
        load = load_of((item.start, item.count, item.rows) for item in items)
        for item in items:
            request = item.request
            start, end = item.start, item.start + item.count
            new_blocks = self.kv.advance(request.kv, end)
            if request.slot is None:
                new.append(self._enter(request))
                new_blocks = self.kv.beyond_matched(request.kv)
            assert request.slot is not None
            item.epoch = request.epoch
            store_from = request.kv.matched if start < request.kv.matched else 0
            work.append(
                SeqWork(request.slot, start, item.count, new_blocks, item.sample, store_from, item.drafts, item.score)
            )
            request.num_computed = end
            request.drawing = end >= len(request.tokens)
            request.kv.last_step = step_id
            request.turn = self._turn = self._turn + 1
        released, self._released = tuple(self._released), []
        self._flight.append(StepRecord(step_id, items, load, self.model.predict_load(load), draft.undrafted))
        return StepPlan(step_id, tuple(new), tuple(work), released)

    def _enter(self, request: RequestState) -> NewSlot:
        """The request gets a slot; blocks beyond the cached ones come with its work."""
        request.slot = self._slots.pop()
        cached = request.kv.matched // self.kv.block_size
        source = request.request
        return NewSlot(
            slot=request.slot,
            request_id=source.request_id,
            tokens=list(request.tokens),
            num_prompt=request.num_prompt,
            params=source.params,
            seed=source.seed,
            choice=source.choice,
            pooling=source.pooling,
            cached_blocks=tuple([table.head(cached) for table in request.kv.tables]),
        )

    def _leave_slot(self, request: RequestState) -> None:
        if request.slot is not None:
            self._released.append(request.slot)
            self._slots.append(request.slot)

    # --- one step is taken in ---

    def retire(self, result: StepResult) -> None:
        """Takes the oldest step's result in: tokens, endings, full blocks; then its parked blocks are free."""
        record = self._flight.popleft()
        assert result.step_id == record.step_id, "steps retire in the order of submission"
        counters = self.counters
        counters.steps += 1
        counters.seconds += result.seconds
        counters.predicted += record.predicted
        self.model.observe(record.load, result.seconds)
        accepted = 0
        for item, output in zip(record.items, result.outputs, strict=True):
            self._count(item, item.computed(output))
            if item.request.epoch == item.epoch:
                accepted += self._take_output(item, output)
        if record.load.rows and any(item.drafts for item in record.items):
            drawing = sum(item.sample for item in record.items)
            self.speculation.retired(record.undrafted, result.seconds, drawing, accepted)
        self.kv.retire(record.step_id)
        if self.kv.tier.on:
            self._time(record, result.seconds)

    def _take_output(self, item: Item, output: SeqOutput) -> int:
        """Takes in what came of an item; returns how many draft tokens were accepted."""
        request = item.request
        if output.error is not None:
            self.finish(request, FinishReason.ERROR, error=output.error)
            return 0
        scores = None if output.prompt_logprobs is None else list(output.prompt_logprobs)
        request.score(len(scores or ()))
        if not item.sample:
            assert not output.tokens, "a partial prompt draws no token"
            end = item.start + item.count
            if end // self.kv.block_size > request.kv.published:
                self.kv.commit(request.kv, request.tokens, end)
            self.kv.slide(request.kv, end)
            part = TokenDelta(request.request.request_id, [], prompt_logprobs=scores, vector=output.vector)
            if end == len(request.tokens):
                self.finish(request, FinishReason.LENGTH, part)
            elif scores:
                self._deltas.append(part)
            return 0
        request.drawing = False
        tokens, reason = request.take([*output.tokens, *output.forced], output.finish)
        accepted = self.speculation.taken(item, tokens)
        self.counters.generated += len(tokens)
        self.waiting.charge(request, 0, len(tokens))
        # Rejected drafts were not computed after all; the newest token never is.
        computed = min(item.computed(output), len(request.tokens) - 1)
        request.num_computed = min(request.num_computed, computed)
        if computed // self.kv.block_size > request.kv.published:
            self.kv.commit(request.kv, request.tokens, computed)
        cached = request.cached_tokens if reason is None else None
        listed = None if output.logprobs is None else list(output.logprobs[: len(tokens)])
        delta = TokenDelta(
            request.request.request_id,
            tokens,
            listed,
            cached_tokens=cached,
            prompt_logprobs=scores,
            drafted=len(item.drafts),
            accepted=accepted,
        )
        if reason is not None:
            self.finish(request, reason, delta)
        else:
            if item.drafts:
                self.kv.give_back(request.kv, computed)
            self.kv.slide(request.kv, computed)
            if tokens or scores:  # without any, the row's mask was late: its position is computed again
                request.cached_tokens = None
                self._deltas.append(delta)
        return accepted

    def _time(self, record: StepRecord, seconds: float) -> None:
        """Tells the tier what prompts cost, by steps that compute little else."""
        rows = sum(item.count for item in record.items)
        prompts = sum(item.count for item in record.items if item.count > 1 + len(item.drafts))
        if prompts >= _TIMED_ROWS and 5 * prompts >= 4 * rows:
            self.kv.tier.computed(rows, seconds)

    def _count(self, item: Item, end: int) -> None:
        """Sorts the positions computed up to `end`: new prompt, or computed before; decodes count as generated."""
        request = item.request
        start = item.start
        once, known = request.computed_once, request.num_known
        if end > once:
            request.computed_once = end
        if start >= known and start >= once:
            return
        if start < once:
            self.counters.recomputed += min(end, once) - start
            start = min(end, once)
        prompt = max(0, min(end, request.num_prompt) - start)
        self.counters.prompt += prompt
        self.counters.recomputed += max(0, min(end, known) - start - prompt)


def _take_cached(request: RequestState) -> int | None:
    cached, request.cached_tokens = request.cached_tokens, None
    return cached
