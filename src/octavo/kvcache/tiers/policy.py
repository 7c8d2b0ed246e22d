"""When a block is worth reading: the disk's measured speed against the engine's own.

`Crossover` holds two rates. The disk's comes from a probe at the start, then from every read. The engine's comes from
its steps that compute prompts; it is kept in the store's directory, so that the next start (and `octavo doctor`) knows
it. Blocks are read where that takes less time than computing them. While the engine's rate is unknown, they are read.
Off: with the tier.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.kvcache.tiers.store import PROBE, RATES

PROBE_BYTES = 16 << 20
READ_SECONDS = 0.001
"""What a read takes besides its bytes: waking a thread, opening files."""
_NEW_SHARE = 0.25
"""Weight of the newest measurement."""
_PATIENCE = 32
"""Refusals in a row after which the disk's speed is tried again."""
_MOST_RATES = 4096
"""Bytes of the file of rates at most."""


@dataclass(frozen=True)
class Rates:
    """What the last engine measured, as its directory keeps it."""

    disk_bytes: float
    """A second."""
    prefill_tokens: float
    """A second; 0: not known."""
    token_bytes: float
    """Bytes of KV a token."""


class Crossover:
    """Decides what is read."""

    def __init__(self, disk_bytes: float, token_bytes: float, prefill_tokens: float = 0.0) -> None:
        self._probed = self._second = 1.0 / disk_bytes
        self._token_bytes = token_bytes
        self._prefill = prefill_tokens
        self._refused = 0

    @property
    def rates(self) -> Rates:
        return Rates(1.0 / self._second, self._prefill, self._token_bytes)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step that computed prompts."""
        if tokens > 0 and seconds > 0:
            rate = tokens / seconds
            self._prefill = rate if not self._prefill else self._prefill + _NEW_SHARE * (rate - self._prefill)

    def read(self, size: int, seconds: float) -> None:
        """So many bytes came from the disk."""
        if size > 0:
            self._second += _NEW_SHARE * (max(seconds, 1e-9) / size - self._second)

    def worth(self, tokens: int) -> bool:
        """Whether reading so many tokens beats computing them."""
        if not self._prefill or READ_SECONDS + tokens * self._token_bytes * self._second < tokens / self._prefill:
            self._refused = 0
            return True
        self._refused += 1
        if self._refused >= _PATIENCE:
            self._refused, self._second = 0, min(self._second, self._probed)
        return False


def break_even(rates: Rates) -> float | None:
    """Tokens from which on reading beats computing; None: never."""
    gain = 1.0 / rates.prefill_tokens - rates.token_bytes / rates.disk_bytes
    return READ_SECONDS / gain if gain > 0 else None


def judgement(rates: Rates) -> str:
    """The crossover for people."""
    reading = f"read at {rates.disk_bytes / 1e6:.0f} MB/s = {rates.disk_bytes / rates.token_bytes:.0f} tokens/s"
    if not rates.prefill_tokens:
        return f"{reading}; the engine's own speed is not measured yet"
    start = break_even(rates)
    pays = "reading never pays" if start is None else f"reading pays from {math.ceil(start)} tokens on"
    return f"{reading}, computed at {rates.prefill_tokens:.0f} tokens/s: {pays}"


def probe(directory: Path) -> float:
    """Bytes a second that a file in the directory is read with, when the system does not have it in memory."""
    path = directory / PROBE
    block = os.urandom(1 << 20)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for _ in range(PROBE_BYTES >> 20):
            os.write(file, block)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file, 0, os.SEEK_SET)
        began = time.perf_counter()
        size = 0
        while count := os.readv(file, [bytearray(1 << 20)]):
            size += count
        return size / max(time.perf_counter() - began, 1e-9)
    finally:
        os.close(file)
        path.unlink(missing_ok=True)


def survey(directory: Path) -> str:
    """What `octavo doctor` says of a tier's directory: its speed, measured now, against the last engine's."""
    if not directory.is_dir():
        return "the directory is made at the first start, which measures it"
    try:
        disk_bytes = probe(directory)
    except OSError as error:
        return f"it cannot be written: {error.strerror or error}"
    saved = saved_rates(directory)
    if saved is None:
        return f"read at {disk_bytes / 1e6:.0f} MB/s; no engine has measured yet how fast it computes"
    return judgement(replace(saved, disk_bytes=disk_bytes))


def save_rates(directory: Path, rates: Rates) -> None:
    """For the next start; raises OSError."""
    part = directory / f"{RATES}.new"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump({name: getattr(rates, name) for name in Rates.__dataclass_fields__}, file)
    part.replace(directory / RATES)


def saved_rates(directory: Path) -> Rates | None:
    """What the last engine left; None where that is nothing, or no rates."""
    try:
        with (directory / RATES).open() as file:
            read = json.loads(file.read(_MOST_RATES))
        rates = Rates(**{name: float(read[name]) for name in Rates.__dataclass_fields__})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return rates if rates.disk_bytes > 0 and rates.prefill_tokens > 0 and rates.token_bytes > 0 else None
