"""The tier's threads: bounded, counted, and off with one line when the disk will not take any more."""

from __future__ import annotations

import os
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from mmap import PAGESIZE
from pathlib import Path

import pytest

from octavo.config import ConfigError, KVConfig
from octavo.execution.pages import ReferencePages
from octavo.kvcache.keys import KeyChain
from octavo.kvcache.tiers.buffers import Buffers
from octavo.kvcache.tiers.disk import QUEUE_BYTES, DiskTier, open_tier
from octavo.kvcache.tiers.policy import Crossover, Rates, break_even, probe, save_rates, saved_rates
from octavo.kvcache.tiers.store import DiskStore
from octavo.kvcache.tiers.tier import Load, NoTier, Want
from octavo.kvcache.tiers.wire import header_bytes
from tests.support.blocks import NUMERICS, SHAPE, WEIGHTS, cached, chain, content, pages
from tests.support.ledger import ledger_info

SIZE = header_bytes(SHAPE) + SHAPE.bytes


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


class Tier:
    """A tier over NumPy's pages."""

    def __init__(self, directory: Path, blocks: int = 16, queue_bytes: int = QUEUE_BYTES) -> None:
        self.pages: ReferencePages = pages(blocks)
        store = DiskStore(directory, 1 << 30, WEIGHTS, NUMERICS, self.pages)
        self.tier = DiskTier(store, self.pages, Crossover(1e9, SHAPE.bytes / SHAPE.tokens), queue_bytes)

    def fill(self, keys: KeyChain, tokens: list[int], index: int, block: int) -> None:
        """Page `block` holds block `index` of the prompt."""
        wire = bytearray(content(keys.key(index, tokens)))
        self.pages.import_block(0, block, memoryview(wire))

    def holds(self, block: int) -> bytes:
        out = bytearray(SHAPE.bytes)
        self.pages.export_block(0, block, memoryview(out))
        return bytes(out)

    def spill(self, keys: KeyChain, tokens: list[int], count: int) -> None:
        for index in range(count):
            self.fill(keys, tokens, index, 0)
            self.tier.spill(0, cached(keys, tokens, index))

    def written(self, blocks: int) -> None:
        """Waits until so many blocks are on disk."""
        until(lambda: self.tier.stats().written_bytes == blocks * SIZE)

    def load(self, keys: KeyChain, tokens: list[int], first: int, count: int) -> Load:
        wants = [Want(0, cached(keys, tokens, first + i, block=1 + i)) for i in range(count)]
        return self.tier.load(wants)


def test_spilled_blocks_are_found_and_loaded_though_their_page_is_used_again(tmp_path: Path) -> None:
    keys, tokens = chain(6)
    one = Tier(tmp_path / "kv")
    one.spill(keys, tokens, 6)
    assert one.tier.run(keys, tokens, 0, 6) == 6
    one.written(6)
    assert one.tier.run(keys, tokens, 0, 6) == 6
    assert one.tier.run(keys, tokens, 2, 5) == 3 and one.tier.run(*chain(6, first_token=9), 0, 6) == 0
    load = one.load(keys, tokens, 0, 6)
    until(lambda: load.done)
    assert load.came == 6
    assert all(one.holds(1 + index) == content(keys.key(index, tokens)) for index in range(6))
    stats = one.tier.stats()
    assert (stats.hits, stats.tokens, stats.written_bytes, stats.dropped) == (1, 6 * SHAPE.tokens, 6 * SIZE, 0)
    one.tier.close(())
    assert isinstance(saved_rates(tmp_path / "kv"), Rates | None)


def test_a_missing_block_ends_a_load_where_it_is_missing(tmp_path: Path) -> None:
    keys, tokens = chain(5)
    one = Tier(tmp_path / "kv")
    one.spill(keys, tokens, 5)
    one.written(5)
    (tmp_path / "kv" / f"{keys.key(3, tokens).hex()}.0.kv").unlink()
    load = one.load(keys, tokens, 0, 5)
    until(lambda: load.done)
    assert load.came == 3 and one.tier.stats().errors == 0 and one.tier.run(keys, tokens, 0, 5) == 3
    one.tier.close(())


def test_blocks_are_dropped_and_counted_where_the_writer_is_behind(tmp_path: Path) -> None:
    keys, tokens = chain(4)
    one = Tier(tmp_path / "kv", queue_bytes=SIZE - 1)
    one.spill(keys, tokens, 4)
    assert one.tier.stats().dropped == 4 and one.tier.run(keys, tokens, 0, 4) == 0
    one.tier.close(())
    assert not list((tmp_path / "kv").glob("*.kv"))


def test_blocks_that_wait_to_be_written_are_hits_and_what_has_no_buffer_is_dropped(tmp_path: Path) -> None:
    """A pipe in the place of the first block's new file holds the writer until somebody reads it."""
    keys, tokens = chain(7)
    one = Tier(tmp_path / "kv", queue_bytes=4 * SIZE)
    pipe = tmp_path / "kv" / f"{keys.key(0, tokens).hex()}.0.part"
    os.mkfifo(pipe)
    one.spill(keys, tokens, 7)
    one.spill(keys, tokens, 2)
    assert one.tier.stats().dropped == 3 and one.tier.run(keys, tokens, 0, 7) == 4
    load = one.load(keys, tokens, 0, 5)
    until(lambda: load.done)
    assert load.came == 4
    assert all(one.holds(1 + index) == content(keys.key(index, tokens)) for index in range(4))
    stats = one.tier.stats()
    assert (stats.hits, stats.tokens, stats.read_bytes, stats.written_bytes) == (1, 4 * SHAPE.tokens, 0, 0)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    one.written(4)
    one.spill(keys, tokens, 7)
    one.written(7)
    os.close(reader)
    assert one.tier.stats().dropped == 3
    (tmp_path / "kv" / f"{keys.key(0, tokens).hex()}.0.kv").unlink()  # the pipe
    one.tier.close(())


def test_buffers_are_in_memory_before_they_are_used() -> None:
    size, count = 10 * PAGESIZE, 40
    buffers, content = Buffers(size, count), bytes(size)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    taken = []
    while (buffer := buffers.take()) is not None:
        buffer[:] = content
        taken.append(buffer)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < count
    assert len(taken) == count
    for number, buffer in enumerate(taken):
        buffer[:] = bytes([number]) * size
    assert all(buffer == bytes([number]) * size for number, buffer in enumerate(taken))
    buffers.give(taken[7])
    assert buffers.free == 1 and buffers.take() is taken[7] and Buffers(size, 0).take() is None


def test_an_orderly_end_keeps_what_the_pages_hold(tmp_path: Path) -> None:
    keys, tokens = chain(12)
    one = Tier(tmp_path / "kv", queue_bytes=2 * SIZE)
    for index in range(12):
        one.fill(keys, tokens, index, index)
    one.tier.close((0, cached(keys, tokens, index, block=index)) for index in range(12))
    one.tier.close(())
    again = Tier(tmp_path / "kv")
    assert again.tier.run(keys, tokens, 0, 12) == 12
    again.tier.close(())


def test_a_full_disk_turns_the_tier_off_with_one_line(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: both end in an error of write()."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "kv")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1 and "off until the next start" in lines[0], lines
    assert not list((tmp_path / "kv").glob("*.part"))


FULL = f"""
import resource, sys, time
from pathlib import Path
from tests.support.blocks import cached, chain
from tests.unit.kvcache.test_disk_tier_threads import Tier
keys, tokens = chain(8)
one = Tier(Path(sys.argv[1]))
one.spill(keys, tokens, 4)
one.written(4)
resource.setrlimit(resource.RLIMIT_FSIZE, ({SIZE // 2}, resource.RLIM_INFINITY))
one.tier.spill(0, cached(keys, tokens, 4))
while one.tier.on:
    time.sleep(0.001)
one.spill(keys, tokens, 8)
assert one.tier.run(keys, tokens, 0, 4) == 0
stats = one.tier.stats()
assert stats.errors == 1 and not stats.on, stats
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
one.tier.close(())
"""


def test_a_disk_that_is_full_at_the_start_is_no_reason_not_to_start(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        config = KVConfig(disk=str(tmp_path / "kv"), disk_bytes=1 << 20)
        tier = open_tier(config, ledger_info(), pages())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not tier.on and tier.stats().errors == 1
    tier.close(())


def test_off_is_a_null_twin_and_a_bound_below_one_block_is_refused(tmp_path: Path) -> None:
    off = open_tier(KVConfig(), ledger_info(), None)
    assert isinstance(off, NoTier) and not off.on and off.run(*chain(1), 0, 1) == 0
    with pytest.raises(ConfigError, match="--kv-disk-bytes 100 is less than one block"):
        open_tier(KVConfig(disk=str(tmp_path / "kv"), disk_bytes=100), ledger_info(), pages())
    # The directory is free again.
    open_tier(KVConfig(disk=str(tmp_path / "kv"), disk_bytes=1 << 20), ledger_info(), pages()).close(())


def test_reading_must_beat_computing() -> None:
    fast_disk = Crossover(disk_bytes=1e9, token_bytes=1e4)
    assert fast_disk.worth(1)  # nothing is known of the engine yet
    fast_disk.computed(1000, 1.0)
    assert fast_disk.worth(1000) and not fast_disk.worth(1)
    start = break_even(fast_disk.rates)
    assert start is not None and not fast_disk.worth(int(start)) and fast_disk.worth(int(start) + 1)
    slow_disk = Crossover(disk_bytes=1e6, token_bytes=1e4, prefill_tokens=1000.0)
    assert break_even(slow_disk.rates) is None
    assert not any(slow_disk.worth(1 << n) for n in range(20))
    # One slow read does not shut the disk out for ever.
    for _ in range(20):
        fast_disk.read(10_000, 10.0)
    assert not fast_disk.worth(1000)
    assert any(fast_disk.worth(1000) for _ in range(100))


def test_speeds_are_kept_for_the_next_start(tmp_path: Path) -> None:
    assert saved_rates(tmp_path) is None
    rates = Rates(2e9, 3000.0, 23040.0)
    save_rates(tmp_path, rates)
    assert saved_rates(tmp_path) == rates and probe(tmp_path) > 0
    for damaged in ("", "[]", "{", '{"disk_bytes": "x"}', '{"disk_bytes": -1, "prefill_tokens": 1, "token_bytes": 1}'):
        (tmp_path / "rates.json").write_text(damaged)
        assert saved_rates(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["rates.json"]


def test_many_loads_and_spills_at_once_never_mix_blocks(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    one = Tier(tmp_path / "kv", blocks=200)
    prompts = [chain(8, first_token=1000 * n) for n in range(12)]
    for keys, tokens in prompts:
        one.spill(keys, tokens, 8)
    until(lambda: all(one.tier.run(keys, tokens, 0, 8) == 8 for keys, tokens in prompts))
    loads = []
    for number, (keys, tokens) in enumerate(prompts):
        wants = [Want(0, cached(keys, tokens, i, block=1 + 8 * number + i)) for i in range(8)]
        loads.append(one.tier.load(wants))
        loads[-1].cancelled = number % 4 == 3
        one.spill(*chain(4, first_token=5000 + 100 * number), 4)
    until(lambda: all(load.done for load in loads))
    for number, ((keys, tokens), load) in enumerate(zip(prompts, loads, strict=True)):
        assert load.came == 8 or number % 4 == 3
        for i in range(load.came):
            assert one.holds(1 + 8 * number + i) == content(keys.key(i, tokens))
    one.tier.close(())
