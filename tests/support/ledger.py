"""The ledger: an executor without a model, that finds every mistake in paging.

A page slot holds (token, position). The next token is a checksum of everything read through the block table, of the
seed and of the choice: a wrong page, a wrong order or a block freed too early gives a wrong token. Steps run when
their result is asked for, as late as they may; blocks are wiped when they are handed out, and `poison` wipes the
free ones, so a stale read never goes unnoticed. `naive` is the loop that says what the tokens must be.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from octavo.types import (
    LEFT_BLOCK,
    BlockShape,
    FinishReason,
    KVGroupSpec,
    ModelInfo,
    NewRequest,
    NewSlot,
    Pooling,
    SamplingParams,
    SeqOutput,
    SeqWork,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

VOCAB = 1000
EOS = (2,)
_EMPTY = -1


def ledger_info(max_context: int = 8192, groups: int = 1, windows: tuple[int, ...] = ()) -> ModelInfo:
    """A model of nothing but pages: `groups` full groups, then one for each window."""
    specs = [KVGroupSpec(name=f"g{i}", kind="full", layers=(i,), bytes_per_token=8) for i in range(groups)]
    for i, window in enumerate(windows, groups):
        specs.append(KVGroupSpec(name=f"g{i}", kind="window", layers=(i,), bytes_per_token=8, window=window))
    return ModelInfo(
        name="ledger",
        architecture="ledger",
        vocab_size=VOCAB,
        num_tokens=VOCAB,
        max_context=max_context,
        eos_token_ids=EOS,
        kv_groups=tuple(specs),
        weights_id="ledger-weights",
        numerics_id="ledger-numerics",
        weights_bytes=0,
    )


def _cell(token: int, position: int) -> int:
    return position * VOCAB + token


def _draw(read: bytes, request: NewRequest | NewSlot, generated: int) -> int:
    """One token in about forty is an end-of-sequence id."""
    params = request.params
    banned = set(params.stop_token_ids) | (set() if params.ignore_eos else set(EOS))
    start = crc32(f"{request.seed} {request.choice}".encode())
    for attempt in range(1000):
        value = crc32(bytes([attempt % 256]) + read, start)
        token = EOS[0] if value % 41 == 0 else value // 41 % VOCAB
        if generated >= params.min_tokens or token not in banned:
            return token
    raise AssertionError("every token is banned")


def _read_directly(tokens: Sequence[int]) -> bytes:
    return array("q", [_cell(token, position) for position, token in enumerate(tokens)]).tobytes()


def naive(request: NewRequest, limit: int) -> tuple[list[int], FinishReason]:
    """New tokens and the ending of a request that has the machine to itself. limit: longest prompt + output."""
    params = request.params
    tokens = request.prompt + request.generated
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(EOS))
    most = min(len(request.prompt) + params.max_tokens, limit)
    first = len(tokens)
    while True:
        generated = len(tokens) - len(request.prompt)
        if generated and tokens[-1] in stops and generated > params.min_tokens:
            return tokens[first:], FinishReason.STOP
        if len(tokens) >= most:
            return tokens[first:], FinishReason.LENGTH
        tokens.append(_draw(_read_directly(tokens), request, generated))


def next_token(request: NewRequest, tokens: Sequence[int]) -> int:
    """What a request draws behind these tokens, its prompt included."""
    return _draw(_read_directly(tokens), request, len(tokens) - len(request.prompt))


def pooled(pooling: Pooling, states: Sequence[int]) -> bytes:
    """The ledger's vector: the positions that it is made of."""
    return array("q", states if pooling is Pooling.MEAN else states[-1:]).tobytes()


def naive_vector(request: NewRequest) -> bytes:
    """What the vector of a pooled request must be."""
    assert request.pooling is not None
    return pooled(request.pooling, [_cell(token, at) for at, token in enumerate(request.prompt)])


def ledger_logprobs(token: int) -> TokenLogprobs:
    return TokenLogprobs(-float(token), [token], [-float(token)])


def ledger_scores(tokens: Sequence[int], first: int, end: int) -> tuple[TokenLogprobs, ...]:
    """Of the tokens behind the positions [first, end)."""
    return tuple(TokenLogprobs(-float(at), [tokens[at + 1]], [-float(at)], 1) for at in range(first, end))


@dataclass
class _Slot:
    new: NewSlot
    tokens: list[int]
    tables: list[list[int]]
    computed: int
    states: list[int] = field(default_factory=list)
    """Of a pooled request: the cells of the positions computed in this slot, in order."""


@dataclass
class Ledger:
    """See the module; implements `types.Executor`."""

    info: ModelInfo
    num_blocks: tuple[int, ...]
    block_size: int
    max_num_seqs: int = 128
    failing: set[int] = field(default_factory=set)
    """Request ids whose next work ends in an error."""
    row_seconds: float = 0.0
    """What a position adds to a step's millisecond."""
    violations: list[str] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pages = [[array("q", [_EMPTY] * self.block_size) for _ in range(total)] for total in self.num_blocks]
        self._sealed: list[set[int]] = [set() for _ in self.num_blocks]
        self._slots: dict[int, _Slot] = {}
        self._results: dict[int, StepResult] = {}
        self._pending: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> LedgerHandle:
        self.plans.append(plan)
        self._pending.append(plan)
        return LedgerHandle(self, plan.step_id)

    def close(self) -> None:
        return None

    @property
    def pages(self) -> LedgerPages:
        """The cells in a wire form, for tiers."""
        return LedgerPages(self._pages, self.block_size)

    def poison(self, group: int, blocks: Sequence[int]) -> None:
        """Wipes blocks that the manager says are free; at once, before steps that are still in flight."""
        for block in blocks:
            self._wipe(group, block)

    def run_until(self, step_id: int) -> StepResult:
        while step_id not in self._results:
            plan = self._pending.pop(0)
            self._results[plan.step_id] = self._run(plan)
        return self._results.pop(step_id)

    def _wipe(self, group: int, block: int) -> None:
        self._pages[group][block][:] = array("q", [_EMPTY] * self.block_size)
        self._sealed[group].discard(block)

    def _complain(self, what: str) -> None:
        self.violations.append(what)

    def _run(self, plan: StepPlan) -> StepResult:
        for slot in plan.released:
            del self._slots[slot]
        for new in plan.new:
            if new.slot in self._slots or not 0 <= new.slot < self.max_num_seqs:
                self._complain(f"slot {new.slot} is taken or does not exist")
            self._slots[new.slot] = _Slot(new, list(new.tokens), [list(blocks) for blocks in new.cached_blocks], 0)
            for group, blocks in enumerate(new.cached_blocks):
                self._sealed[group].update(block for block in blocks if block != LEFT_BLOCK)
        if len({work.slot for work in plan.work}) != len(plan.work):
            self._complain("a slot has two works in one step")
        # All rows are stored before any is read, as in a batched forward pass.
        for work in plan.work:
            self._store(self._slots[work.slot], work)
        outputs = tuple([self._output(self._slots[work.slot], work) for work in plan.work])
        return StepResult(plan.step_id, outputs, 0.001 + self.row_seconds * sum(work.count for work in plan.work))

    def _store(self, slot: _Slot, work: SeqWork) -> None:
        for group, blocks in enumerate(work.new_blocks):
            slot.tables[group].extend(blocks)
            for block in blocks:
                self._wipe(group, block)
        if work.drafts and not work.sample:
            self._complain(f"request {slot.new.request_id} has drafts and draws nothing")
        known = work.start + work.count - len(work.drafts)
        draws = slot.new.pooling is None and slot.new.params.max_tokens > 0
        if work.sample != (known == len(slot.tokens) and draws):
            self._complain(f"request {slot.new.request_id} draws behind position {known} of {len(slot.tokens)}")
        tokens = [*slot.tokens, *work.drafts]
        if slot.computed and work.start != slot.computed:
            self._complain(f"request {slot.new.request_id}: position {work.start} follows {slot.computed}")
        slot.computed = work.start + work.count
        for position in range(max(work.start, work.store_from), work.start + work.count):
            for group, table in enumerate(slot.tables):
                block = table[position // self.block_size]
                if block in self._sealed[group]:
                    self._complain(f"request {slot.new.request_id} writes to the shared block {block}")
                cell = _cell(tokens[position], position)
                self._pages[group][block][position % self.block_size] = cell

    def _output(self, slot: _Slot, work: SeqWork) -> SeqOutput:
        if slot.new.request_id in self.failing:
            return SeqOutput(error="The request was made to fail.")
        taken: list[int] = []
        known = work.start + work.count - len(work.drafts)
        for behind in range(len(work.drafts) + 1):
            token = self._draw_one(slot, work, known + behind, [*slot.tokens, *work.drafts[:behind]])
            if work.sample:
                taken.append(token)
            if behind == len(work.drafts) or token != work.drafts[behind]:
                break
        if slot.new.pooling is not None:
            slot.states += [_cell(slot.tokens[at], at) for at in range(work.start, known)]
            return SeqOutput(vector=pooled(slot.new.pooling, slot.states) if known == len(slot.tokens) else None)
        slot.tokens += taken
        if work.drafts:
            slot.computed = len(slot.tokens) - 1
            blocks = -(-slot.computed // self.block_size)
            slot.tables = [table[:blocks] for table in slot.tables]
        logprobs = None if slot.new.params.logprobs is None else tuple([ledger_logprobs(token) for token in taken])
        first, end = work.score
        if first != end and not work.start <= first < end <= min(known, slot.new.num_prompt - 1):
            self._complain(f"request {slot.new.request_id} is scored at {work.score} of {work.start} to {known}")
        scores = ledger_scores(slot.tokens, first, end) or None
        return SeqOutput(tuple(taken), logprobs if taken else None, prompt_logprobs=scores)

    def _draw_one(self, slot: _Slot, work: SeqWork, end: int, tokens: list[int]) -> int:
        """What is drawn behind position `end` - 1, by what its row reads through the tables."""
        start = work.start if not work.drafts else end - 1
        expected = _read_directly(tokens[:end])
        for group in range(len(slot.tables)):
            read = self._seen(slot, group, start, end)
            if read != expected[-len(read) :]:
                self._complain(f"request {slot.new.request_id} reads wrong pages below position {end}")
                break
        else:
            read = expected
        return _draw(read, slot.new, len(tokens) - slot.new.num_prompt) if work.sample else 0

    def _seen(self, slot: _Slot, group: int, start: int, end: int) -> bytes:
        """What the rows of positions [start, end) see, through the table."""
        window = self.info.kv_groups[group].window
        first = 0 if window is None else max(0, start - window + 1)
        table = slot.tables[group][first // self.block_size : -(-end // self.block_size)]
        if LEFT_BLOCK in table:
            self._complain(f"request {slot.new.request_id} lacks a block that position {start} sees")
            return b"-"
        read = b"".join([self._pages[group][block].tobytes() for block in table])
        return read[first % self.block_size * 8 :][: (end - first) * 8]


class LedgerPages:
    """See `types.BlockPages`: a cell has the bytes of one key and one value of a float."""

    def __init__(self, cells: list[list[array[int]]], block_size: int) -> None:
        self._cells = cells
        shape = BlockShape(dtype="float32", layers=1, heads=1, tokens=block_size, dim=1)
        self.shapes = (shape,) * len(cells)

    def export_block(self, group: int, block: int, wire: memoryview) -> None:
        wire[: self.shapes[group].bytes] = self._cells[group][block].tobytes()

    def import_block(self, group: int, block: int, wire: memoryview) -> None:
        self._cells[group][block][:] = array("q", wire[: self.shapes[group].bytes].tobytes())

    def checksum(self, wire: memoryview) -> int:
        return crc32(wire)


@dataclass
class LedgerHandle:
    """A step in flight; it runs when its result is asked for."""

    ledger: Ledger
    step_id: int

    def result(self) -> StepResult:
        return self.ledger.run_until(self.step_id)


def make_request(request_id: int, prompt: list[int], max_tokens: int, **fields: object) -> NewRequest:
    """A request; fields of `SamplingParams` and of `NewRequest` alike."""
    names = set(SamplingParams.__struct_fields__)
    params = {name: value for name, value in fields.items() if name in names}
    rest = {name: value for name, value in fields.items() if name not in names}
    rest.setdefault("seed", request_id)
    return NewRequest(
        request_id=request_id,
        prompt=prompt,
        params=SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
        **rest,  # type: ignore[arg-type]
    )
