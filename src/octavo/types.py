"""The shared vocabulary: requests, step plans, step results and the messages between processes.

Owns nothing and imports nothing else of Octavo but sampling_types.py. Everything here is frozen; what crosses a process
boundary is a msgspec Struct, encoded as MessagePack.

Life of a request: `NewRequest` (client -> engine) -> `SeqWork` in `StepPlan`s (scheduler -> executor)
-> `SeqOutput` in `StepResult`s (executor -> scheduler) -> `TokenDelta`s in `StepOutput`s (engine -> client),
the last of which carries a `FinishReason`. Every request gets exactly one final delta.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from octavo.sampling_types import SamplingDefaults as SamplingDefaults
from octavo.sampling_types import SamplingParams as SamplingParams
from octavo.sampling_types import Structure as Structure


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """An end-of-sequence or stop token was generated (stop text is matched by the server)."""
    LENGTH = "length"
    """`max_tokens`, the context or the KV pool was reached."""
    ABORT = "abort"
    """The client went away or asked for it."""
    ERROR = "error"
    """The request failed; `TokenDelta.error` is one sentence that says what to do."""


class Pooling(StrEnum):
    """How the hidden states of a prompt become one vector."""

    MEAN = "mean"
    """The mean over all positions, added up in their order in double precision."""
    LAST = "last"
    """The last position's."""


class NewRequest(msgspec.Struct, frozen=True, kw_only=True, tag="new"):
    """First submission, replay after a crash, migration and disaggregation alike (DESIGN 3.8).

    The prompt and the tokens already generated are kept apart, so that penalties, `min_tokens`, usage and
    the noise counters of the sampler are rebuilt from them and the request goes on where it stopped.
    """

    request_id: int
    """Unique within one client's life."""
    prompt: list[int]
    """Token ids, at least one."""
    params: SamplingParams
    seed: int
    """64-bit key of the sampler's noise; drawn by the server where the user gave none."""
    generated: list[int] = []
    scored: int = 0
    """Of the prompt's log-probabilities, so many have been told already."""
    choice: int = 0
    """Index within the user's `n`; part of the noise counter."""
    cache_salt: str = ""
    """Requests share cached prefixes only where salt and tenant are equal."""
    tenant: str = ""
    """Who pays: fairness counts by it and cached prefixes are its own; empty where the server knows no tenants."""
    priority: int = 0
    """Lower runs first where `--scheduling-policy priority` is on; otherwise it is 0."""
    deadline: float | None = None
    """Unix time in seconds at which the request ends with an error, wherever it stands. None: never."""
    pooling: Pooling | None = None
    """Set: nothing is drawn; the final delta has the vector, and `params` say nothing."""
    adapter: str = ""
    """Reserved; part of the block key."""

    @property
    def fresh(self) -> bool:
        """The answer holds something of every position, so each is computed for it: no hits."""
        return self.pooling is Pooling.MEAN or self.scores_left > 0

    @property
    def scores_left(self) -> int:
        """Prompt log-probabilities still to tell: the first token has none."""
        return 0 if self.params.prompt_logprobs is None else len(self.prompt) - 1 - self.scored


class ErrorCode(StrEnum):
    """What kind of error ended a request, where the reason is not the engine's fault."""

    DEADLINE = "deadline_exceeded"
    """The request's own deadline passed."""
    QUEUE_TIMEOUT = "queue_timeout"
    """It waited longer than the queue allows."""
    QUEUE_FULL = "queue_full"
    """There was no place in the queue."""
    NEVER_FITS = "context_length_exceeded"
    """It is larger than what the engine can ever run."""
    BAD_STRUCTURE = "bad_structure"
    """What its output is to look like cannot be had."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Ends requests; unknown and finished ids are ignored. Each live one still gets its final delta."""

    request_ids: list[int]


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Take no more requests, finish the open ones, then exit 0."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Abort what is open and exit 0."""


class PinPrefix(msgspec.Struct, frozen=True, kw_only=True, tag="pin"):
    """Keeps the cached blocks of a prefix for some time; a pin of the same name is replaced. Answered by a PinReply."""

    call: int
    """Comes back with the reply."""
    name: str
    tokens: list[int]
    seconds: float
    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""


class UnpinPrefix(msgspec.Struct, frozen=True, kw_only=True, tag="unpin"):
    """Ends a pin."""

    call: int
    name: str


class ListPins(msgspec.Struct, frozen=True, kw_only=True, tag="pins"):
    """Asks for all pins."""

    call: int


PinRequest = PinPrefix | UnpinPrefix | ListPins
ClientMessage = NewRequest | Abort | Drain | Shutdown | PinPrefix | UnpinPrefix | ListPins


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities under the raw model distribution, at one position."""

    logprob: float
    top_ids: list[int]
    """Most likely first, ties by lowest id."""
    top_logprobs: list[float]
    rank: int = 0
    """Of a prompt's token: 1 + how many are more likely, ties by lowest id. 0 where it was generated."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one step (or a refusal) adds to one request."""

    request_id: int
    tokens: list[int]
    """Newly generated ids, the stop token included."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry a token where asked for."""
    finish: FinishReason | None = None
    """Set on the final delta."""
    stop_token: int | None = None
    """The id that ended the request, where finish is STOP."""
    error: str | None = None
    cached_tokens: int | None = None
    """Prompt tokens taken from the prefix cache at first admission; sent with the first delta."""
    code: ErrorCode | None = None
    """Set beside `error` where the request, the queue or the clock ended it."""
    vector: bytes | None = None
    """The pooled hidden states, float32 little-endian, not normalised; on the final delta of a pooled request."""
    drafted: int = 0
    """Draft tokens that were checked for these tokens."""
    accepted: int = 0
    """Of the drafted ones, those that are among `tokens`."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Where asked for: those of the prompt's next tokens, from the second token on. All come before the first token
    that is generated, or with it."""


StepPrices = tuple[float, float, float, float, float]
"""Of any step, a position computed, a row of logits, a position of context read, a (position computed, seen) pair."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot after a step. Counters only ever grow."""

    running: int
    waiting: int
    kv_blocks_total: int
    kv_blocks_free: int
    """Blocks that hold nothing a running request needs: free ones and cached ones that may be evicted."""
    kv_blocks_cached: int
    steps: int
    prompt_tokens: int
    """Prompt positions computed (cache hits excluded; recomputation after preemption excluded)."""
    cached_prompt_tokens: int
    """Prompt positions that were found and not computed; what a request computed itself before is not among them."""
    prefix_queries: int = 0
    """Prompt tokens of admitted requests, each once: what the prefix cache was asked for."""
    resumed_tokens: int = 0
    """Positions that a preempted request had before and found again."""
    refused_hits: int = 0
    """Hits that `--verify-prefix-cache` found wrong; any is a fault of the engine."""
    evicted_blocks: int = 0
    """Cached blocks given up for others."""
    pinned_blocks: int = 0
    """Held by pins now."""
    recomputed_tokens: int
    generated_tokens: int
    preemptions: int
    step_seconds: float
    """Wall time spent inside executor steps, summed."""
    disk_hits: int = 0
    """Requests for which blocks came from the disk; their tokens are in `cached_prompt_tokens` too."""
    disk_tokens: int = 0
    disk_read_bytes: int = 0
    disk_read_seconds: float = 0.0
    disk_written_bytes: int = 0
    disk_dropped_blocks: int = 0
    """Evicted blocks that were not kept, for the disk was behind."""
    disk_errors: int = 0
    """Damaged files, and reads and writes that failed."""
    disk_bytes: int = 0
    """Held on disk now."""
    disk_on: int = 0
    """1 while the tier on disk works."""
    predicted_seconds: float = 0.0
    """What the step-time model said before each of them, summed."""
    step_budget: int = 0
    """Tokens that the newest step could have."""
    step_prices: StepPrices = (0.0, 0.0, 0.0, 0.0, 0.0)
    """Seconds, as learnt."""
    waiting_tokens: int = 0
    """Positions that waiting requests still have to compute before they draw a token."""
    drafts_checked: tuple[int, ...] = ()
    """Entry p: drafts of more than p tokens that were checked. Empty: speculation is off."""
    drafts_accepted: tuple[int, ...] = ()
    """Entry p: those of them whose first p + 1 tokens were accepted."""
    draft_seconds: float = 0.0
    """Spent on making drafts."""
    draft_saved_seconds: float = 0.0
    """What the accepted tokens would have taken without drafts, by the step-time model, beyond what they took."""


class StepOutput(msgspec.Struct, frozen=True, tag="step"):
    """The one message a step: all requests' deltas."""

    deltas: list[TokenDelta]
    stats: EngineStats


class KVGroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table. `kind` is "full" or "window"."""

    name: str
    kind: str
    layers: tuple[int, ...]
    bytes_per_token: int
    """Over all layers of the group."""
    window: int | None = None


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What scheduler and server need to know of a loaded model."""

    name: str
    architecture: str
    vocab_size: int
    """Rows of the output head (ids >= `num_tokens` are never drawn)."""
    num_tokens: int
    """Ids that the tokeniser knows."""
    hidden_size: int = 0
    """Values of a hidden state."""
    max_context: int
    """Context the model was trained for, tokens."""
    eos_token_ids: tuple[int, ...]
    kv_groups: tuple[KVGroupSpec, ...]
    weights_id: str
    """Digest of the weights' content."""
    tokenizer_id: str = ""
    """Digest of the tokeniser's files; empty where `weights_id` covers them."""
    numerics_id: str
    """Names every choice that may change bits (arithmetic contract, KV precision, RoPE, attention kind)."""
    weights_bytes: int
    """Size of the packed weights in memory."""
    sampling: SamplingDefaults = SamplingDefaults()
    """Of generation_config, unless switched off."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine can take requests."""

    info: ModelInfo
    num_blocks: tuple[int, ...]
    """Blocks in the pool of each group."""
    block_size: int
    max_model_len: int
    """Longest prompt + output that is admitted, tokens."""
    report: tuple[str, ...]
    """Start-up lines: the memory budget and the kernels chosen."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Loading goes on: what is being done, and how much of it (0 to 1, or None)."""

    what: str
    fraction: float | None = None


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine cannot start or go on; one sentence for the user."""

    message: str


class PinInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One pin."""

    name: str
    tokens: int
    seconds_left: float


class PinReply(msgspec.Struct, frozen=True, kw_only=True, tag="pins"):
    """The pins after what was asked, or why it was not done."""

    call: int
    pins: list[PinInfo]
    budget_tokens: int
    pinned_tokens: int
    error: str | None = None
    missing: bool = False
    """The error is about what is not there: a prefix that is not cached, a pin that does not exist."""


EngineMessage = StepOutput | Ready | Progress | Fatal | PinReply


# --- scheduler <-> executor ---------------------------------------------------------------------


LEFT_BLOCK = -1
"""In `NewSlot.cached_blocks`: a block of a window group that no position to come sees."""


class NewSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker must know of a request that enters (or re-enters) a slot."""

    slot: int
    request_id: int
    tokens: list[int]
    """Prompt, then what was generated before."""
    num_prompt: int
    params: SamplingParams
    seed: int
    choice: int
    cached_blocks: tuple[tuple[int, ...], ...]
    """Blocks already filled (prefix hits), one tuple a group: the head of the block table, or LEFT_BLOCK."""
    pooling: Pooling | None = None


class SeqWork(msgspec.Struct, frozen=True):
    """Compute positions [start, start + count) of the request in `slot`.

    The worker knows the tokens: `NewSlot.tokens`, then what it sampled itself, then `drafts`, which it does not keep.
    """

    slot: int
    start: int
    count: int
    new_blocks: tuple[tuple[int, ...], ...]
    """Appended to the slot's block table, one tuple a group."""
    sample: bool
    """Draw a token from the logits of the last position, and from those of every draft token."""
    store_from: int = 0
    """Positions below this are recomputed without a store (their page is shared and already full)."""
    drafts: tuple[int, ...] = ()
    """Guessed tokens of the last positions of `count`, where `sample` is set. Blocks beyond the accepted positions are
    the scheduler's again: the worker forgets them."""
    score: tuple[int, int] = (0, 0)
    """At the positions [from, to), which are among the work's, the next token is known: its log-probability is
    wanted."""

    @property
    def rows(self) -> int:
        """Rows of logits."""
        return self.sample * (1 + len(self.drafts)) + self.score[1] - self.score[0]


class StepPlan(msgspec.Struct, frozen=True):
    """One step. The order of `work` is the batch order on every rank."""

    step_id: int
    new: tuple[NewSlot, ...]
    work: tuple[SeqWork, ...]
    released: tuple[int, ...]
    """Slots whose request has left since the last plan; applied before `new`."""


class SeqOutput(msgspec.Struct, frozen=True):
    """For one SeqWork: the tokens accepted (none for a partial prefill), or an error that ends the request.

    With drafts: those that were accepted, then the target's own draw behind them.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None
    forced: tuple[int, ...] = ()
    """Tokens that alone may follow `tokens`: taken too, but not computed yet. They have no logprobs."""
    finish: FinishReason | None = None
    """The request ends here without another token: its structure is complete (STOP) or at a dead end (LENGTH)."""
    vector: bytes | None = None
    """Of a pooled request whose last position was computed; see `TokenDelta.vector`."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """At the positions of `SeqWork.score`."""


class StepResult(msgspec.Struct, frozen=True):
    """Outputs in the order of `StepPlan.work`."""

    step_id: int
    outputs: tuple[SeqOutput, ...]
    seconds: float
    """Wall time of the step."""


class StepHandle(Protocol):
    """A step in flight."""

    def result(self) -> StepResult:
        """Waits for the step and returns what it made."""
        ...


class BlockShape(msgspec.Struct, frozen=True, kw_only=True):
    """The wire form of one block of one group: rows of [layer][key, value][head][position][dim]."""

    dtype: str
    """"bf16" or "float32"."""
    layers: int
    heads: int
    tokens: int
    dim: int

    @property
    def bytes(self) -> int:
        return 2 * self.layers * self.heads * self.tokens * self.dim * (2 if self.dtype == "bf16" else 4)


class BlockPages(Protocol):
    """A back end's pages as disks, networks and other back ends see them. Safe from any thread.

    Who may read or write which block when is the caller's business.
    """

    @property
    def shapes(self) -> tuple[BlockShape, ...]:
        """One a group."""
        ...

    def export_block(self, group: int, block: int, wire: memoryview) -> None:
        """Writes the block's wire form."""
        ...

    def import_block(self, group: int, block: int, wire: memoryview) -> None:
        """Fills the block from its wire form."""
        ...

    def checksum(self, wire: memoryview) -> int:
        """64 bits that accidental damage changes."""
        ...


class Executor(Protocol):
    """Runs steps. CPU: in the calling thread. Many ranks, overlap and tests use the same interface."""

    info: ModelInfo
    num_blocks: tuple[int, ...]
    """Blocks in each group's pool, fixed when the executor was made."""

    def submit(self, plan: StepPlan) -> StepHandle:
        """Starts a step; steps retire in the order of submission."""
        ...

    def close(self) -> None:
        """Frees weights, pages and threads; harmless when called twice."""
        ...
