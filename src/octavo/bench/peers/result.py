"""A result file of `octavo bench peers`, read back and checked: what the HTML report and later comparisons stand on.

The file is the one that `--json` writes; a field that is missing or of another type is named in the error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from octavo.config import ConfigError


class WorkRead(msgspec.Struct, frozen=True):
    """What was asked of every contender of one way."""

    name: str
    streams: int
    prompt: int
    output: int
    figure: str
    way: str = "offline"
    requests: int = 0

    @property
    def text(self) -> str:
        """For a person."""
        what = f"{self.streams} {'users' if self.way == 'http' else 'streams'}"
        if self.streams == 1:
            what = what.removesuffix("s")
        many = f", {self.requests} requests" if self.requests else ""
        return f"{what}{many}, {self.prompt} prompt and {self.output} output tokens"


class ContenderRead(msgspec.Struct, frozen=True):
    """One engine in one form."""

    name: str
    peer: str
    form: str
    way: str
    versions: dict[str, str] = {}
    facts: dict[str, Any] = {}
    start_seconds: float | None = None
    memory_bytes: float | None = None
    problem: str | None = None
    left_out: str | None = None


class SampleRead(msgspec.Struct, frozen=True):
    """One run; `extra` holds what a way measures besides."""

    contender: str
    work: str
    round: int
    extra: dict[str, float | None] = {}


class RowRead(msgspec.Struct, frozen=True):
    """One contender at one work, over all rounds."""

    work: str
    contender: str
    peer: str
    form: str
    way: str
    figure: str
    median: float
    low: float
    high: float
    count: int
    steady: bool
    best: bool


class RatioRead(msgspec.Struct, frozen=True):
    """A form of Octavo over the best form of a peer."""

    work: str
    way: str
    figure: str
    octavo: str
    peer: str
    best_form: str
    median: float
    """Of the rounds' ratios."""
    value: float | None
    """This and the next three are None where there were too few rounds for an interval."""
    low: float | None
    high: float | None
    pairs: int | None
    verdict: str


class Result(msgspec.Struct, frozen=True):
    """A whole run."""

    kind: Literal["peers"]
    machine: dict[str, Any]
    lines: list[str]
    seed: int
    others: float
    rounds: int
    quick: bool
    seconds: float
    model: dict[str, Any]
    works: list[WorkRead]
    contenders: list[ContenderRead]
    samples: list[SampleRead]
    rows: list[RowRead]
    ratios: list[RatioRead]
    problems: list[str] = []
    """What could not take part at all."""

    def work(self, name: str) -> WorkRead:
        return next(work for work in self.works if work.name == name)

    def ways(self) -> list[str]:
        """Of the rows, offline first."""
        return sorted({row.way for row in self.rows}, key=lambda way: (way != "offline", way))

    def extras(self, contender: str, work: str, name: str) -> list[float]:
        """What the samples' `extra` hold of one measure."""
        found = [one.extra.get(name) for one in self.samples if (one.contender, one.work) == (contender, work)]
        return [value for value in found if value is not None]


def parse(result: dict[str, Any]) -> Result:
    """Raises ConfigError."""
    try:
        return msgspec.convert(result, Result)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this is no result of octavo bench peers: {error}; a file of its --json works") from error


def read(path: str) -> dict[str, Any]:
    """The values of a file, checked. Raises ConfigError."""
    try:
        values = msgspec.json.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: {error}; a file that octavo bench peers --json wrote works") from error
    try:
        parse(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    assert isinstance(values, dict)
    return values
