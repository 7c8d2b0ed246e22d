"""Blocks from disk give the tokens and log-probabilities that computing them gives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.core import EngineCore
from octavo.execution.factory import build_executor
from octavo.kvcache.tiers.disk import open_tier
from octavo.types import Abort, EngineStats, NewRequest, SamplingParams, TokenDelta
from tests.support.executors import configured
from tests.support.tiny import Tiny, write_hf

TINY = Tiny(layers=3, max_context=1024)
Answer = list[tuple[list[int], Any]]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("tiny"), TINY).path


class Served:
    """An engine, and what it said."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.stats: EngineStats = core.stats()
        self.cached: dict[int, int] = {}
        self._ids = 0

    def start(self, prompt: Sequence[int], max_tokens: int = 12, **fields: Any) -> int:
        self._ids += 1
        params = SamplingParams(max_tokens=max_tokens, temperature=0.8, logprobs=3, ignore_eos=True)
        self.core.handle(NewRequest(request_id=self._ids, prompt=list(prompt), params=params, seed=7, **fields))
        return self._ids

    def finish(self) -> dict[int, Answer]:
        said: dict[int, Answer] = {}
        while self.core.has_work:
            output = self.core.step()
            for delta in output.deltas if output else ():
                self._take(delta, said)
        self.core.validate()
        self.stats = self.core.stats()
        return said

    def ask(self, prompt: Sequence[int], **fields: Any) -> Answer:
        request_id = self.start(prompt, **fields)
        return self.finish()[request_id]

    def _take(self, delta: TokenDelta, said: dict[int, Answer]) -> None:
        assert delta.error is None
        said.setdefault(delta.request_id, []).append((delta.tokens, delta.logprobs))
        if delta.cached_tokens is not None:
            self.cached[delta.request_id] = delta.cached_tokens


@contextmanager
def engine(path: Path, **changes: Any) -> Iterator[Served]:
    """Closed in order, so that what the pages hold is on disk afterwards."""
    executor = build_executor(configured(path, **changes), lambda what, fraction: None)
    tier = open_tier(executor.config.kv, executor.info, executor.pages)
    core = EngineCore(executor.config, executor, tier=tier)
    try:
        yield Served(core)
    finally:
        core.close()
        executor.close()


def prompt_of(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(5, 250) for _ in range(length)]


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("attention", ["tiled", "naive"])
def test_a_hit_after_a_restart_is_computing_it(
    tiny_path: Path, tmp_path: Path, rng: random.Random, precision: str, attention: str
) -> None:
    prompt = prompt_of(rng, 300)
    options = {"precision": precision, "attention": attention}
    with engine(tiny_path, **options) as cold:
        expected = cold.ask(prompt)
    with engine(tiny_path, disk=str(tmp_path / "kv"), **options) as first:
        assert first.ask(prompt) == expected
        assert first.stats.disk_hits == 0 and first.stats.disk_on
    with engine(tiny_path, disk=str(tmp_path / "kv"), **options) as second:
        assert second.ask(prompt) == expected
        assert second.stats.disk_tokens == second.cached[1] == 288 == second.stats.cached_prompt_tokens
        assert second.stats.prompt_tokens == 12 and second.stats.disk_errors == 0
        # In the pages now.
        assert second.ask(prompt) == expected
        assert second.cached[2] == 288 and second.stats.disk_hits == 1


@pytest.mark.parametrize("length", [32, 320])
def test_a_prompt_that_fills_its_blocks_comes_whole_and_one_position_is_computed(
    tiny_path: Path, tmp_path: Path, rng: random.Random, length: int
) -> None:
    prompt = prompt_of(rng, length)
    with engine(tiny_path, disk=str(tmp_path / "kv")) as first:
        expected = first.ask(prompt)
    with engine(tiny_path, disk=str(tmp_path / "kv")) as second:
        assert second.ask(prompt) == expected
        assert second.cached[1] == length - 1 and second.stats.prompt_tokens == 1
        assert second.ask(prompt) == expected and second.stats.disk_hits == 1


def test_the_reference_keeps_its_pages_on_disk_too(tiny_path: Path, tmp_path: Path, rng: random.Random) -> None:
    prompt = prompt_of(rng, 100)
    with engine(tiny_path, disk=str(tmp_path / "kv"), backend="reference") as first:
        expected = _joined(first.ask(prompt))[0]
    with engine(tiny_path, disk=str(tmp_path / "kv"), backend="reference") as second:
        # Its last bits depend on the batch; its tokens here do not.
        assert _joined(second.ask(prompt))[0] == expected and second.cached[1] == 96


def test_what_a_small_pool_evicts_comes_back(tiny_path: Path, tmp_path: Path, rng: random.Random) -> None:
    prompts = [prompt_of(rng, rng.randrange(100, 260)) for _ in range(6)]
    with engine(tiny_path) as cold:
        expected = [cold.ask(prompt) for prompt in prompts]
    with engine(tiny_path, disk=str(tmp_path / "kv"), size_tokens=320) as small:
        for _ in range(3):
            for prompt, answer in zip(prompts, expected, strict=True):
                assert small.ask(prompt) == answer
        assert small.stats.disk_hits > 0 and small.stats.disk_errors == 0
        ids = [small.start(prompt) for prompt in prompts]
        said = small.finish()
        merged = [_joined(said[request_id]) for request_id in ids]
        assert merged == [_joined(answer) for answer in expected]


def test_damaged_files_are_computed_again_and_removed(
    tiny_path: Path, tmp_path: Path, rng: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = prompt_of(rng, 300)
    directory = tmp_path / "kv"
    with engine(tiny_path, disk=str(directory)) as first:
        expected = first.ask(prompt)
    damaged = rng.choice(sorted(directory.glob("*.kv")))
    content = bytearray(damaged.read_bytes())
    content[-rng.randrange(1, 2000)] ^= 16
    damaged.write_bytes(content)
    with engine(tiny_path, disk=str(directory)) as second:
        assert second.ask(prompt) == expected
        assert second.stats.disk_errors in (0, 1)  # a block of the answer is not read
        assert len(caplog.records) == second.stats.disk_errors
        assert second.cached[1] % 32 == 0 and second.stats.prompt_tokens == 300 - second.cached[1]
    with engine(tiny_path, disk=str(directory)) as third:
        assert third.ask(prompt) == expected
        assert third.cached[1] == 288 and third.stats.disk_errors == 0


def test_requests_that_end_while_their_blocks_come_leave_nothing(
    tiny_path: Path, tmp_path: Path, rng: random.Random
) -> None:
    prompt = prompt_of(rng, 700)
    with engine(tiny_path, disk=str(tmp_path / "kv")) as first:
        expected = first.ask(prompt)
    with engine(tiny_path, disk=str(tmp_path / "kv"), size_tokens=1024) as second:
        for _ in range(20):
            request_id = second.start(prompt)
            for _ in range(rng.randrange(3)):
                second.core.step()
            second.core.handle(Abort([request_id]))
        second.finish()
        pool = second.core.kv.groups[0].pool
        assert pool.used == 0 and pool.available == pool.total and not second.core.kv.loading
        assert second.ask(prompt) == expected


def test_salts_and_tenants_keep_blocks_apart_on_disk_too(tiny_path: Path, tmp_path: Path, rng: random.Random) -> None:
    prompt = prompt_of(rng, 200)
    with engine(tiny_path, disk=str(tmp_path / "kv")) as first:
        expected = first.ask(prompt, cache_salt="one")
    with engine(tiny_path, disk=str(tmp_path / "kv")) as second:
        assert second.ask(prompt, cache_salt="two") == expected and second.stats.disk_hits == 0
        assert second.ask(prompt) == expected and second.stats.disk_hits == 0
        assert second.ask(prompt, cache_salt="one") == expected and second.stats.disk_hits == 1


def test_another_arithmetic_finds_nothing(tiny_path: Path, tmp_path: Path, rng: random.Random) -> None:
    prompt = prompt_of(rng, 200)
    with engine(tiny_path, disk=str(tmp_path / "kv")) as first:
        first.ask(prompt)
    with engine(tiny_path, disk=str(tmp_path / "kv"), attention="naive") as second:
        second.ask(prompt)
        assert second.stats.disk_hits == 0 and second.stats.disk_errors == 0


def _joined(answer: Answer) -> tuple[list[int], list[Any]]:
    return [token for tokens, _ in answer for token in tokens], [p for _, entries in answer for p in entries or ()]
