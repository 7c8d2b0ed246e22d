"""The store on disk: what comes back is what was written, or nothing."""

from __future__ import annotations

import logging
import os
import random
import secrets
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.config import ConfigError
from octavo.kvcache.keys import KeyChain
from octavo.kvcache.tiers.store import DiskStore
from octavo.kvcache.tiers.wire import Cached, WireError, header_bytes
from tests.support.blocks import SHAPE, cached, chain, content, file_of, store

SIZE = header_bytes(SHAPE) + SHAPE.bytes


@pytest.fixture
def rng() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def put(into: DiskStore, keys: KeyChain, tokens: list[int], index: int) -> Path:
    block = cached(keys, tokens, index)
    assert into.write(0, block, file_of(block, content(block.key))) == SIZE
    return into.directory / f"{block.key.hex()}.0.kv"


def get(of: DiskStore, block: Cached) -> bytes | None:
    wire = of.read(0, block, memoryview(bytearray(SIZE)))
    return None if wire is None else bytes(wire)


def test_blocks_survive_a_restart(tmp_path: Path) -> None:
    keys, tokens = chain(5)
    first = store(tmp_path / "kv")
    for index in range(5):
        put(first, keys, tokens, index)
    first.close()
    again = store(tmp_path / "kv")
    assert len(again) == 5 and again.size == 5 * SIZE
    for index in range(5):
        block = cached(keys, tokens, index)
        assert again.has(block.key, 0) and get(again, block) == content(block.key)
    again.close()


def test_a_file_cut_anywhere_is_removed_and_never_read(tmp_path: Path) -> None:
    keys, tokens = chain(1)
    block = cached(keys, tokens, 0)
    kept = store(tmp_path / "kv")
    whole = put(kept, keys, tokens, 0).read_bytes()
    path = kept.directory / f"{block.key.hex()}.0.kv"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(WireError, match="was removed"):
            get(kept, block)
        assert not path.exists() and not kept.has(block.key, 0)
    path.write_bytes(whole + b"\0")
    with pytest.raises(WireError, match="more than"):
        get(kept, block)
    path.write_bytes(whole)
    assert get(kept, block) == content(block.key)
    kept.close()


def test_a_changed_byte_is_found(tmp_path: Path, rng: random.Random) -> None:
    keys, tokens = chain(1)
    block = cached(keys, tokens, 0)
    kept = store(tmp_path / "kv")
    path = put(kept, keys, tokens, 0)
    whole = path.read_bytes()
    header = header_bytes(SHAPE)
    places = [*range(0, 700, 7), *range(header, len(whole), 11), *rng.sample(range(len(whole)), 200)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(WireError):
            get(kept, block)
    kept.close()


def test_what_another_model_or_another_block_left_is_not_read(tmp_path: Path) -> None:
    keys, tokens = chain(2)
    other = store(tmp_path / "kv", weights="other weights")
    path = put(other, keys, tokens, 0)
    other.close()
    kept = store(tmp_path / "kv")
    with pytest.raises(WireError, match="another model"):
        get(kept, cached(keys, tokens, 0))
    one, two = put(kept, keys, tokens, 0), put(kept, keys, tokens, 1)
    two.write_bytes(one.read_bytes())
    with pytest.raises(WireError, match="another block"):
        get(kept, cached(keys, tokens, 1))
    assert not two.exists() and path == one
    same_key = cached(keys, tokens, 0)
    with pytest.raises(WireError):
        get(kept, Cached(same_key.key, same_key.above, bytes(len(same_key.packed)), 0))
    kept.close()


def test_the_bound_holds_and_the_least_recently_used_goes(tmp_path: Path) -> None:
    keys, tokens = chain(8)
    kept = store(tmp_path / "kv", max_bytes=3 * SIZE + 1)
    for index in range(3):
        put(kept, keys, tokens, index)
    assert get(kept, cached(keys, tokens, 0)) is not None
    put(kept, keys, tokens, 3)
    there = [kept.has(keys.key(index, tokens), 0) for index in range(4)]
    assert there == [True, False, True, True]
    assert sum(path.stat().st_size for path in (tmp_path / "kv").glob("*.kv")) == kept.size == 3 * SIZE
    kept.close()
    smaller = store(tmp_path / "kv", max_bytes=SIZE)
    assert len(smaller) == 1 and len(list((tmp_path / "kv").glob("*.kv"))) == 1
    smaller.close()


def test_foreign_files_are_left_alone_and_half_written_ones_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "kv"
    directory.mkdir(mode=0o700)
    (directory / "holiday.jpg").write_bytes(b"mine")
    (directory / "notes.kv").write_bytes(b"mine too")
    part = directory / f"{'ab' * 32}.0.part"
    part.write_bytes(b"half")
    with caplog.at_level(logging.WARNING):
        kept = store(directory)
    assert len(caplog.records) == 1 and "2 entries" in caplog.text and "holiday.jpg" in caplog.text
    assert not len(kept) and not part.exists() and (directory / "holiday.jpg").exists()
    kept.close()


def test_a_directory_in_a_blocks_place_costs_that_block_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys, tokens = chain(2)
    blocks = [cached(keys, tokens, index) for index in range(2)]
    directory = tmp_path / "kv"
    directory.mkdir(mode=0o700)
    path = directory / f"{blocks[0].key.hex()}.0.kv"
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        kept = store(directory)
        for _ in range(2):
            assert kept.write(0, blocks[0], file_of(blocks[0], content(blocks[0].key))) == 0
    assert len(caplog.records) == 1 and path.name in caplog.text
    assert path.is_dir() and not list(directory.glob("*.part")) and not kept.has(blocks[0].key, 0)
    put(kept, keys, tokens, 1)
    assert get(kept, blocks[1]) == content(blocks[1].key)
    kept.close()


def test_only_the_user_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys, tokens = chain(1)
        kept = store(tmp_path / "kv")
        put(kept, keys, tokens, 0)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "kv").iterdir()}
    assert set(modes.values()) == {0o600} and stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
    kept.close()


def test_a_directory_that_others_may_read_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "kv"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        store(open_to_all)


@pytest.mark.parametrize("where", ["/proc/octavo-kv", "/dev/null", "/dev/null/kv"])
def test_a_directory_that_cannot_be_is_refused_in_one_sentence(where: str) -> None:
    with pytest.raises(ConfigError, match="--kv-disk") as refused:
        store(Path(where))
    assert "\n" not in str(refused.value)


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    directory = tmp_path / "kv"
    with owner(directory) as first:
        assert first.stdout is not None and first.stdout.readline()
        with pytest.raises(ConfigError, match="in use by another engine"):
            store(directory)
        first.kill()
        first.wait()
    store(directory).close()


def test_what_a_killed_process_was_writing_is_never_read_wrong(tmp_path: Path, rng: random.Random) -> None:
    directory = tmp_path / "kv"
    for life in range(3):
        least = (life + 1) * rng.randrange(1, 30)
        with owner(directory, "write") as writer:
            assert writer.stdout is not None
            for _ in range(least):
                writer.stdout.readline()
            writer.kill()
            writer.wait()
        kept = store(directory)
        assert len(kept) >= min(least, 64) - 1 and not list(directory.glob("*.part"))
        for index in range(64):
            block = cached(*chain(64), index)
            assert get(kept, block) in (None, content(block.key))
        kept.close()


OWNER = """
import itertools, sys
from pathlib import Path
from tests.support.blocks import cached, chain, content, file_of, store
kept = store(Path(sys.argv[1]))
print("open", flush=True)
keys, tokens = chain(64)
blocks = [cached(keys, tokens, index) for index in range(64)]
wires = [content(block.key) for block in blocks]
for index in itertools.count():
    if sys.argv[2] == "hold":
        sys.stdin.readline()
    kept.write(0, blocks[index % 64], file_of(blocks[index % 64], wires[index % 64]))
    print(index, flush=True)
"""


def owner(directory: Path, what: str = "hold") -> subprocess.Popen[str]:
    """A process that has the store open, and writes one block after the other or waits."""
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def test_an_index_of_many_files_is_quick(tmp_path: Path) -> None:
    directory = tmp_path / "kv"
    directory.mkdir(mode=0o700)
    for index in range(5000):
        (directory / f"{index:064x}.0.kv").touch(0o600)
    began = time.monotonic()
    kept = store(directory)
    assert len(kept) == 5000 and time.monotonic() - began < 2
    kept.close()
