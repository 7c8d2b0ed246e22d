"""Blocks from disk after a restart, against computing them: time to the first token, beside what the disk itself says.

Prompts of 2 048 random tokens are computed once by an engine that keeps its blocks on disk. A second engine then gets
each of them with the page cache emptied of its files. The prediction is the same prompt's time when its blocks are in
memory, plus their bytes at the rate with which other files of the directory, cold as well, were read just before.

The first token may come at most 25 % later than predicted. Earlier is no failure: the tier tells the system of the
files that follow, while those that give the rate are read one by one. But no read is faster than pages that hold the
blocks already: a median below theirs (by more than 5 %) means that something else was measured, and fails.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from octavo.config import EngineConfig, KVConfig, ModelConfig
from octavo.engine.core import EngineCore
from octavo.execution.executor import LocalExecutor
from octavo.execution.factory import build_executor
from octavo.kvcache.tiers.disk import open_tier
from octavo.models.store import default_model
from octavo.types import EngineStats, NewRequest, SamplingParams

TOKENS, SHORT_TOKENS = 2048, 512
_POOL = 3 * TOKENS
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class First:
    """One prompt's answer."""

    seconds: float
    """To the first token."""
    tokens: tuple[int, ...]
    cached: int


class Engine:
    """Answers one prompt at a time."""

    def __init__(self, core: EngineCore, executor: LocalExecutor) -> None:
        self.core = core
        self.vocab = executor.info.num_tokens
        self._executor = executor
        self._ids = 0

    def ask(self, prompt: list[int], salt: str = "") -> First:
        self._ids += 1
        params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
        began = time.perf_counter()
        self.core.handle(NewRequest(request_id=self._ids, prompt=prompt, params=params, seed=0, cache_salt=salt))
        seconds, tokens, cached = 0.0, [], 0
        while self.core.has_work:
            output = self.core.step()
            for delta in output.deltas if output is not None else ():
                assert delta.error is None, delta.error
                seconds = seconds or time.perf_counter() - began
                tokens += delta.tokens
                cached += delta.cached_tokens or 0
        return First(seconds, tuple(tokens), cached)

    def touch(self) -> None:
        """Uses every page once: the system's work for a page that is new would count as the disk's."""
        pages = self._executor.pages
        assert pages is not None
        for group, shape in enumerate(pages.shapes):
            nothing = memoryview(bytes(shape.bytes))
            for block in range(self._executor.num_blocks[group]):
                pages.import_block(group, block, nothing)

    def stats(self) -> EngineStats:
        return self.core.stats()


@contextmanager
def engine(directory: Path) -> Iterator[Engine]:
    """The default model, keeping its blocks in `directory`."""
    model = ModelConfig(path=str(default_model(lambda what, fraction: None)), max_model_len=_POOL)
    config = EngineConfig(model=model, kv=KVConfig(size_tokens=_POOL, disk=str(directory)))
    executor = build_executor(config, lambda what, fraction: None)
    core = EngineCore(executor.config, executor, tier=open_tier(executor.config.kv, executor.info, executor.pages))
    try:
        yield Engine(core, executor)
    finally:
        core.close()
        executor.close()


def forget(files: list[Path]) -> None:
    """Takes files, which are on the disk, out of the page cache."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read_rate(files: list[Path]) -> float:
    """Bytes a second of reading files one after the other."""
    buffer = bytearray(max(path.stat().st_size for path in files))
    began, size = time.perf_counter(), 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            size += file.readinto(buffer) or 0
    return size / (time.perf_counter() - began)


def disk_tier(short: bool) -> dict[str, Any]:
    """See the module."""
    rng = random.Random()
    count, tokens = (3, SHORT_TOKENS) if short else (12, TOKENS)
    Path("bars").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="bars", prefix="disk-tier-") as folder:
        directory = Path(folder) / "kv"
        with engine(directory) as first:
            prompts = [[rng.randrange(100, first.vocab) for _ in range(tokens)] for _ in range(count)]
            computed = [first.ask(prompt) for prompt in prompts]
            _settle(first, directory)
        files = list(directory.glob("*.kv"))
        os.sync()
        size = tokens // 32 * files[0].stat().st_size
        rows: list[dict[str, float]] = []
        same = True
        with engine(directory) as second:
            second.touch()
            for prompt, cold in zip(prompts, computed, strict=True):
                forget(files)
                rate = read_rate(rng.sample(files, min(len(files), tokens // 32)))
                forget(files)
                hit = second.ask(prompt)
                memory = second.ask(prompt)
                again = second.ask(prompt, salt=str(rng.random()))
                same = same and hit.tokens == memory.tokens == again.tokens == cold.tokens
                assert hit.cached == tokens - 1 and again.cached == 0, (hit, again)
                rows.append(
                    {
                        "disk": hit.seconds,
                        "memory": memory.seconds,
                        "computed": again.seconds,
                        "rate": rate,
                        "predicted": memory.seconds + size / rate,
                    }
                )
            stats = second.stats()
    return _judge(rows, size, same and not stats.disk_errors)


def _settle(engine: Engine, directory: Path) -> None:
    """Waits until nothing more is written; what the pages still hold follows when the engine is closed."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        before = engine.stats().disk_written_bytes
        time.sleep(0.3)
        if engine.stats().disk_written_bytes == before:
            return


def _judge(rows: list[dict[str, float]], size: int, same: bool) -> dict[str, Any]:
    disk, predicted, computed = (median(row[name] for row in rows) for name in ("disk", "predicted", "computed"))
    memory = median(row["memory"] for row in rows)
    near = 0.95 * memory <= disk <= 1.25 * predicted
    ratio, expected = computed / disk, computed / predicted
    rate = median(row["rate"] for row in rows)
    worse = sum(row["disk"] > row["computed"] for row in rows)
    return {
        "bar": "first token at most 25 % later than predicted (earlier is good), not before that of blocks in memory, "
        "never later than computing, 0.8 of the predicted ratio",
        "figure": f"{disk * 1e3:.0f} ms from disk, {predicted * 1e3:.0f} predicted "
        f"({100 * (disk / predicted - 1):+.0f} %; {size / 1e6:.0f} MB at {rate / 1e6:.0f} MB/s), "
        f"{memory * 1e3:.0f} from memory, {computed * 1e3:.0f} computed: "
        f"{ratio:.1f} times as fast, {expected:.1f} predicted; {worse} of {len(rows)} later than computing",
        "met": near and not worse and ratio >= 0.8 * expected and same,
        "details": {"rows": rows, "bytes": size, "same_tokens": same},
    }
