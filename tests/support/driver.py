"""Drives an executor step by step without a scheduler: hands out slots and blocks, in any batch that a test wants."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.types import (
    NewSlot,
    Pooling,
    SamplingParams,
    SeqWork,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

GREEDY = SamplingParams(max_tokens=1 << 20, temperature=0.0, logprobs=3)


@dataclass(eq=False)
class Run:
    """One request: what it is asked, how far it is, what it got."""

    tokens: list[int]
    params: SamplingParams
    seed: int
    choice: int
    num_prompt: int
    slot: int = -1
    computed: int = 0
    store_from: int = 0
    blocks: list[int] = field(default_factory=list)
    told: int = 0
    """Blocks that the executor knows."""
    entered: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: str | None = None
    pooling: Pooling | None = None
    vector: bytes | None = None

    @property
    def out(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    def answer(self) -> tuple[Any, ...]:
        """All that must be equal, bit for bit."""
        return (
            self.out,
            [(p.logprob, p.top_ids, p.top_logprobs) for p in self.logprobs],
            self.error,
        )


class Driver:
    """Owns the executor's slots and blocks. Blocks are handed out in an order drawn from `rng`."""

    def __init__(self, executor: Any, rng: random.Random | None = None) -> None:
        self.executor = executor
        self._block_size = executor.config.kv.block_size
        self._free = list(range(executor.num_blocks[0]))
        self._slots = list(range(executor.config.scheduler.max_num_seqs))
        if rng is not None:
            rng.shuffle(self._free)
            rng.shuffle(self._slots)
        self._released: list[int] = []
        self._steps = 0

    def start(
        self,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY,
        seed: int = 0,
        choice: int = 0,
        generated: Sequence[int] = (),
        cached: Sequence[int] = (),
    ) -> Run:
        """cached: blocks that already hold the first tokens; the last token's logits are always computed."""
        run = Run([*prompt, *generated], params, seed, choice, len(prompt))
        run.slot = self._slots.pop()
        run.blocks = list(cached)
        run.store_from = min(len(cached) * self._block_size, len(run.tokens))
        run.computed = min(run.store_from, len(run.tokens) - 1)
        run.told = len(cached)
        return run

    def step(self, works: Sequence[tuple[Run, int]]) -> StepResult:
        """Computes `count` more positions of each run."""
        new, work = [], []
        for run, count in works:
            if not run.entered:
                new.append(
                    NewSlot(
                        slot=run.slot,
                        request_id=id(run),
                        tokens=list(run.tokens),
                        num_prompt=run.num_prompt,
                        params=run.params,
                        seed=run.seed,
                        choice=run.choice,
                        pooling=run.pooling,
                        cached_blocks=(tuple(run.blocks),),
                    )
                )
                run.entered = True
            end = run.computed + count
            while len(run.blocks) * self._block_size < end:
                run.blocks.append(self._free.pop())
            fresh, run.told = tuple(run.blocks[run.told :]), len(run.blocks)
            work.append(
                SeqWork(
                    run.slot,
                    run.computed,
                    count,
                    (fresh,),
                    end == len(run.tokens) and run.pooling is None,
                    run.store_from,
                )
            )
        plan = StepPlan(self._steps, tuple(new), tuple(work), tuple(self._released))
        self._released = []
        self._steps += 1
        result = self.executor.submit(plan).result()
        for (run, count), output in zip(works, result.outputs, strict=True):
            run.computed += count
            run.tokens += output.tokens
            run.logprobs += output.logprobs or ()
            run.error = output.error
            run.vector = output.vector
        return result

    def release(self, run: Run, keep: Sequence[int] = ()) -> None:
        """The run's slot and its blocks, but for those in `keep`, may be used by others."""
        if run.entered:
            self._released.append(run.slot)
        self._slots.insert(0, run.slot)
        self._free += [b for b in run.blocks if b not in keep and b not in self._free]

    def free(self, blocks: Sequence[int]) -> None:
        self._free += blocks

    def finish(self, run: Run, tokens: int, chunk: int | None = None) -> None:
        """Runs one request alone until it has generated `tokens`."""
        while len(run.out) < tokens and run.error is None:
            self.step([(run, min(run.pending, chunk or run.pending))])

    def pool(self, prompt: Sequence[int], pooling: Pooling, chunk: int | None = None) -> bytes:
        """The vector of a pooled request, alone."""
        run = self.start(prompt)
        run.pooling = pooling
        while run.pending:
            self.step([(run, min(run.pending, chunk or run.pending))])
        self.release(run)
        assert run.vector is not None, run.error
        return run.vector

    def solo(
        self,
        prompt: Sequence[int],
        tokens: int,
        params: SamplingParams = GREEDY,
        **kwargs: Any,
    ) -> Run:
        """A request from start to release, alone."""
        chunk = kwargs.pop("chunk", None)
        run = self.start(prompt, params, **kwargs)
        self.finish(run, tokens, chunk)
        self.release(run)
        return run

    def together(
        self,
        runs: Sequence[Run],
        tokens: Sequence[int],
        rng: random.Random,
        budget: int,
    ) -> None:
        """Runs all of them in batches of random membership, order and chunk sizes, within `budget` rows a step."""
        todo = list(zip(runs, tokens, strict=True))
        while todo:
            picked = rng.sample(todo, rng.randint(1, len(todo)))
            works, left = [], budget
            for run, _ in picked:
                count = min(
                    run.pending,
                    left if run.pending == 1 else rng.randint(1, max(1, left)),
                )
                if left > 0:
                    works.append((run, count))
                    left -= count
            self.step(works)
            todo = [(run, n) for run, n in todo if len(run.out) < n and run.error is None]

    def prompt_logits(self, tokens: Sequence[int]) -> Any:
        """The logits at every position, computed in one step."""
        run = self.start(tokens)
        blocks = tuple(self._free.pop() for _ in range(-(-len(tokens) // self._block_size)))
        new = NewSlot(
            slot=run.slot,
            request_id=0,
            tokens=list(tokens),
            num_prompt=len(tokens),
            params=GREEDY,
            seed=0,
            choice=0,
            cached_blocks=((),),
        )
        logits = self.executor.prompt_logits(new, (blocks,))
        self._slots.insert(0, run.slot)
        self._free += blocks
        return logits
