"""The matrix: arms (how a step runs) x conditions (what surrounds a request). Every cell must equal one set of answers,
those of each request alone, whole, cold, on the first arm.

Life: `verify(config, options, say)` loads one executor an arm, one after another, says a line a cell and returns a
`Report`. Slow instruction sets get short prompts, with answers of the first arm for the same. Off switch: none.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from octavo.config import EngineConfig, ExecutionConfig
from octavo.execution.executor import LocalExecutor
from octavo.execution.factory import build_executor
from octavo.models.locate import locate_model
from octavo.verify.cell import Answers, Condition, alone, compare, run_cell
from octavo.verify.work import OUTPUT, Asked, draw_requests

SLOW_ISAS = ("portable", "amx-emulated")
POOL_TOKENS = 8192
ROWS = 1200
"""Rows of a step: the longest prompt whole, and noise."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Arm:
    """How steps run."""

    isa: str
    threads: int
    shared: bool = True
    program: bool = True

    def text(self) -> str:
        parts = (
            self.isa,
            f"{self.threads} thread{'' if self.threads == 1 else 's'}",
            f"shared-prefix {'on' if self.shared else 'off'}",
            f"program {'on' if self.program else 'off'}",
        )
        return ", ".join(parts)


@dataclass(frozen=True)
class Cell:
    """A cell's outcome."""

    arm: str
    condition: str
    result: str
    """"equal", "DIFFERS", or why it was not run."""
    difference: str | None
    answers: int
    seconds: float


@dataclass
class Report:
    """All cells."""

    seed: int
    quick: bool
    cells: list[Cell]

    @property
    def equal(self) -> bool:
        return not any(cell.difference for cell in self.cells) and any(cell.result == "equal" for cell in self.cells)

    def lines(self) -> list[str]:
        equal = sum(cell.result == "equal" for cell in self.cells)
        different = [cell for cell in self.cells if cell.difference]
        rest = len(self.cells) - equal - len(different)
        lines = [f"{equal} cells equal, {len(different)} differ, {rest} not reached; seed {self.seed}"]
        lines += [f"first difference: {cell.arm}; {cell.condition}: {cell.difference}" for cell in different[:1]]
        return lines

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal}


def conditions(quick: bool) -> list[Condition]:
    """All that make sense together; quick: each change by itself, and all at once."""
    if quick:
        return [
            Condition(),
            Condition(noisy=True),
            Condition(chunks=True),
            Condition(cache="hit"),
            Condition(cache="disk"),
            Condition(noisy=True, chunks=True, cache="hit", preempted=True),
            Condition(noisy=True, choices=False),
        ]
    values = itertools.product((False, True), (False, True), ("cold", "hit", "disk"), (False, True), (True, False))
    return [Condition(*value) for value in values]


def arms(isas: tuple[str, ...], threads: int, quick: bool) -> list[Arm]:
    """The first is the one that all are compared with."""
    first = Arm(isas[0], threads)
    found = [first, replace(first, shared=False), replace(first, program=False)]
    if threads > 1:
        found.append(replace(first, threads=1))
    found += [Arm(isa, threads) for isa in isas[1:]]
    if not quick:
        counts = sorted({1, threads}, reverse=True)
        product = itertools.product(isas, counts, (True, False), (True, False))
        found += [arm for arm in (Arm(*values) for values in product) if arm not in found]
    return found


def verify(config: EngineConfig, quick: bool, seed: int, say: Say, isas: tuple[str, ...] | None = None) -> Report:
    """isas: instead of all that the machine has. Raises ConfigError or ModelError as loading does."""
    from octavo import _native

    config = replace(_roomy(config), model=locate_model(config.model))
    known = isas or ((config.execution.isa,) if config.execution.isa else tuple(_native.isas()))
    threads = config.execution.threads or _native.cpu_count()
    report = Report(seed, quick, [])
    rng = random.Random(seed)
    expected: dict[bool, Answers] = {}
    for number, arm in enumerate(arms(known, threads, quick)):
        executor = build_executor(_with(config, arm), lambda what, fraction: None)
        try:
            if number == 0:
                slow_arms = any(isa in SLOW_ISAS for isa in known)
                for slow in (False, True) if slow_arms else (False,):
                    expected[slow] = alone(executor, _asked(executor, seed, slow))
                count = sum(len(_conditions(each, quick)) for each in arms(known, threads, quick))
                say(f"compared with each request alone, whole and cold on {arm.text()}: {count} cells")
            for cell in _cells(executor, arm, expected, seed, rng, quick):
                report.cells.append(cell)
                say(_line(cell))
        finally:
            executor.close()
    return report


def _cells(
    executor: LocalExecutor, arm: Arm, expected: dict[bool, Answers], seed: int, rng: random.Random, quick: bool
) -> Iterator[Cell]:
    slow = arm.isa in SLOW_ISAS
    asked = _asked(executor, seed, slow)
    for condition in _conditions(arm, quick):
        began = time.monotonic()
        outcome = run_cell(executor, asked, condition, rng)
        found = compare(expected[slow], outcome.answers)
        result = "DIFFERS" if found else outcome.missed or "equal"
        seconds = round(time.monotonic() - began, 2)
        said = None if found is None else found.text()
        yield Cell(arm.text(), condition.text().strip(), result, said, len(outcome.answers), seconds)


def _conditions(arm: Arm, quick: bool) -> list[Condition]:
    """Those of an arm: few where it is slow."""
    return conditions(quick or arm.isa in SLOW_ISAS or arm.threads == 1)


def _line(cell: Cell) -> str:
    line = f"{cell.arm:58s} {cell.condition:56s} {cell.result} ({cell.answers} answers, {cell.seconds:.1f} s)"
    return line if cell.difference is None else f"{line}\n  {cell.difference}"


def _asked(executor: LocalExecutor, seed: int, slow: bool) -> list[Asked]:
    length = executor.config.model.max_model_len
    assert length is not None
    return draw_requests(executor.info.num_tokens, length - OUTPUT - 1, seed, slow)


def _roomy(config: EngineConfig) -> EngineConfig:
    """A pool and steps that hold the work, where the flags say nothing of them."""
    kv, scheduler = config.kv, config.scheduler
    if kv.size_tokens is None and kv.size_bytes is None:
        kv = replace(kv, size_tokens=POOL_TOKENS)
    scheduler = replace(scheduler, max_num_batched_tokens=max(ROWS, scheduler.max_num_batched_tokens), max_num_seqs=32)
    return replace(config, kv=kv, scheduler=scheduler)


def _with(config: EngineConfig, arm: Arm) -> EngineConfig:
    own = config.execution
    shared = arm.shared and own.attention == "tiled" and own.backend == "cpu"
    execution: ExecutionConfig = replace(
        own, isa=arm.isa, threads=arm.threads, program=arm.program, shared_prefix_attention=shared
    )
    return replace(config, execution=execution)
