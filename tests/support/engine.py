"""The whole engine core on the ledger, and the checks that every test of it makes after every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.config import EngineConfig, KVConfig, KVShape, ModelConfig, PoolSizes, SchedulerConfig, SpeculativeConfig
from octavo.engine.core import EngineCore
from octavo.kvcache.manager import block_tokens
from octavo.kvcache.tiers.disk import open_tier
from octavo.speculative_config import resolved
from octavo.types import ClientMessage, EngineStats, FinishReason, NewRequest, TokenDelta, TokenLogprobs
from tests.support.guesses import Guesses
from tests.support.ledger import VOCAB, Ledger, ledger_info, ledger_scores, naive, naive_vector, next_token

_MOMENTARY = (
    "running",
    "waiting",
    "waiting_tokens",
    "step_budget",
    "step_prices",
    "disk_bytes",
    "disk_on",
    "pinned_blocks",
    "draft_saved_seconds",
)
_GROWING = tuple(
    name for name in EngineStats.__struct_fields__ if name not in _MOMENTARY and not name.startswith("kv_blocks")
)


@dataclass(frozen=True)
class Drafts:
    """Speculation on the ledger: guesses of which so many are right."""

    right: float
    rng: random.Random
    most: int = 6
    adaptive: bool = False

    def proposer(self, requests: dict[int, NewRequest]) -> Guesses:
        def follow(key: int, tokens: Sequence[int]) -> int:
            return next_token(requests[key], tokens)

        return Guesses(self.rng, follow, VOCAB, self.right)


def _speculative(drafts: Drafts | None, scheduler: SchedulerConfig) -> SpeculativeConfig:
    if drafts is None:
        return SpeculativeConfig()
    wanted = SpeculativeConfig("ngram", drafts.most, adaptive=drafts.adaptive)
    return resolved(wanted, scheduler.max_num_seqs, scheduler.max_num_batched_tokens)


class Rig:
    """An engine core, what it was asked and what it said."""

    def __init__(
        self,
        pool_tokens: int,
        max_model_len: int = 512,
        depth: int = 1,
        groups: int = 1,
        windows: tuple[int, ...] = (),
        block_size: int = 32,
        paged: bool = True,
        prefix_cache: bool = True,
        pin_tokens: int = 0,
        verify: bool = False,
        disk: Path | None = None,
        drafts: Drafts | None = None,
        **scheduler: object,
    ) -> None:
        kv = KVConfig(
            size_tokens=pool_tokens,
            block_size=block_size,
            paged=paged,
            prefix_cache=prefix_cache,
            pin_tokens=pin_tokens,
            verify_prefix_cache=verify,
            disk=None if disk is None else str(disk),
            disk_bytes=None if disk is None else 1 << 30,
        )
        scheduler = {"order": "priority", **scheduler}
        config = EngineConfig(
            model=ModelConfig(max_model_len=max_model_len),
            kv=kv,
            scheduler=SchedulerConfig(**scheduler),  # type: ignore[arg-type]
            speculative=_speculative(drafts, SchedulerConfig(**scheduler)),  # type: ignore[arg-type]
            validate_kv=True,
        )
        size = block_tokens(kv, max_model_len)
        sizes = PoolSizes(KVShape(0), config.scheduler, size)
        tokens = max(size, pool_tokens)
        blocks = tuple(sizes.blocks(tokens, window) for window in (*(None,) * groups, *windows))
        self.config = config
        info = ledger_info(groups=groups, windows=windows)
        self.ledger = Ledger(info, blocks, size, config.scheduler.max_num_seqs)
        self.requests: dict[int, NewRequest] = {}
        self.guesses = None if drafts is None else drafts.proposer(self.requests)
        tier = open_tier(kv, info, self.ledger.pages)
        self.core = EngineCore(config, self.ledger, depth, tier, self.guesses)
        self.limit = min(max_model_len, self.core.kv.capacity_tokens)
        self.tokens: dict[int, list[int]] = {}
        self.finals: dict[int, TokenDelta] = {}
        self.scores: dict[int, list[TokenLogprobs]] = {}
        self.cached: dict[int, int] = {}
        self.first_token_step: dict[int, int] = {}
        self.steps = 0
        self.stats = self.core.stats()

    def send(self, *messages: ClientMessage) -> None:
        for message in messages:
            if isinstance(message, NewRequest):
                self.requests[message.request_id] = message
                self.tokens[message.request_id] = []
                self.scores[message.request_id] = []
            self.core.handle(message)
        self._poison()

    def step(self) -> list[TokenDelta]:
        """One step, with every invariant checked afterwards."""
        output = self.core.step()
        self.steps += 1
        self._poison()
        assert not self.ledger.violations, self.ledger.violations
        if output is None:
            return []
        for delta in output.deltas:
            self._take(delta)
        self._check_stats(output.stats)
        return output.deltas

    def run(self, limit: int = 20_000) -> None:
        """Steps until everybody has an answer."""
        for _ in range(limit):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError(f"work is left after {limit} steps")

    def check_answers(self) -> None:
        """Every answer is that of the naive loop, and the pool is full again."""
        assert set(self.finals) == set(self.requests)
        for request_id, request in self.requests.items():
            final = self.finals[request_id]
            got = self.tokens[request_id]
            if final.finish is FinishReason.ERROR:
                continue
            if request.pooling is not None:
                assert not got
                assert final.finish is FinishReason.ABORT or final.vector == naive_vector(request)
                continue
            expected, reason = naive(request, self.limit)
            if final.finish is FinishReason.ABORT:
                assert got == expected[: len(got)], f"request {request_id} went astray"
                continue
            assert got == expected, f"request {request_id} went astray"
            assert self.scores[request_id] == self._expected_scores(request)
            assert final.finish is reason
            assert final.stop_token == (got[-1] if reason is FinishReason.STOP and got else None)
        self.check_idle()
        stats = self.core.stats()
        assert sum(self.cached.values()) == stats.cached_prompt_tokens, "usage and metrics tell the same hits"
        assert stats.cached_prompt_tokens <= stats.prefix_queries or not stats.cached_prompt_tokens

    def check_idle(self) -> None:
        """Nothing is used, pinned or parked."""
        assert not self.core.has_work
        self.core.validate()
        for group in self.core.kv.groups:
            assert group.pool.used == 0
            assert group.pool.available == group.pool.total and group.claimed == 0
        assert not self.core.kv.has_parked

    def _poison(self) -> None:
        """Wipes what is free now, though steps may still be in flight."""
        for number, group in enumerate(self.core.kv.groups):
            pool = group.pool
            assert pool.free + pool.used + pool.idle == pool.total
            self.ledger.poison(number, pool.free_ids())

    def _take(self, delta: TokenDelta) -> None:
        request_id = delta.request_id
        assert request_id not in self.finals, f"request {request_id} got a delta after its final one"
        if delta.tokens and request_id not in self.first_token_step:
            self.first_token_step[request_id] = self.steps
        assert not (delta.prompt_logprobs and self.tokens[request_id]), "scores come before tokens"
        self.scores[request_id].extend(delta.prompt_logprobs or ())
        if delta.tokens:
            assert self.scores[request_id] == self._expected_scores(self.requests[request_id])
        self.tokens[request_id].extend(delta.tokens)
        if self.requests[request_id].params.logprobs is not None and delta.tokens:
            assert delta.logprobs is not None
            assert [entry.top_ids[0] for entry in delta.logprobs] == delta.tokens
        if delta.cached_tokens is not None:
            assert request_id not in self.cached, "cached tokens are told once"
            self.cached[request_id] = delta.cached_tokens
        if delta.finish is not None:
            assert (delta.error is not None) == (delta.finish is FinishReason.ERROR)
            self.finals[request_id] = delta

    @staticmethod
    def _expected_scores(request: NewRequest) -> list[TokenLogprobs]:
        if request.params.prompt_logprobs is None:
            return []
        return list(ledger_scores(request.prompt, request.scored, len(request.prompt) - 1))

    def _check_stats(self, stats: EngineStats) -> None:
        for name in _GROWING:
            assert getattr(stats, name) >= getattr(self.stats, name), f"{name} fell"
        self.stats = stats
