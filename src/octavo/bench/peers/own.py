"""Are our figures of other engines right? Each engine's own benchmark on the same work, in turns with our measurement.

Both run the same form with the same threads, batch and lengths; random token ids, no prefix cache, no early end. What
the tool calls its rate decides what is compared (`own_tools.py`): output tokens a second of whole batches (vLLM), or of
the answers alone (llama.cpp, OpenVINO). A turn is some repetitions of the one and as many of the other, in an order
drawn anew; our worker is stopped meanwhile. The ratio is of pairs, with its interval: "agrees" where it lies within
10 %, "differs" where it lies outside. Off switch: no `--own`.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.bench.machine import NOISY, Watch, noise
from octavo.bench.peers import own_tools
from octavo.bench.peers.compare import READY_SECONDS, RUN_SECONDS, log_of
from octavo.bench.peers.contender import WORKERS, Contender, Room, Work, changes, offline, rates
from octavo.bench.peers.environments import Environment
from octavo.bench.peers.guard import Guard, kill_session
from octavo.bench.peers.http import http
from octavo.bench.peers.own_tools import Call, Given, ToolError
from octavo.bench.peers.worker import Worker, WorkerError
from octavo.bench.stats import LEAST_PAIRS, Ratio, Spread, paired_ratio, spread
from octavo.bench.workload import constant, random_workload
from octavo.config import child_environment

Say = Callable[[str], None]
Tool = Callable[[Given, Work, int, Path], Call]

NEAR = 0.1
"""Figures this near to each other agree."""
_TOOL_SECONDS = 1200.0


@dataclass(frozen=True)
class Case:
    """A tool, and the work that both do."""

    peer: str
    tool: str
    work: Work
    call: Tool | None
    """None: the engine's API tells its own figure, and a second worker asks for it."""
    turns: int
    repeats: int
    """Of each side in a turn."""

    @property
    def way(self) -> str:
        """Ours: llama.cpp's own tools are the offline measurement already, so its server is measured beside them."""
        return "http" if self.peer == "llamacpp" else "offline"


def _batch(streams: int, figure: str) -> Work:
    return Work(f"{figure}-{streams}", streams, 128, 64, figure)


CASES = (
    Case("vllm", "vllm bench latency", _batch(8, "output"), own_tools.vllm_latency, 2, 4),
    Case("vllm", "vllm bench throughput", _batch(32, "output"), own_tools.vllm_throughput, 2, 1),
    Case("openvino", "perf_metrics", _batch(1, "decode"), None, 8, 1),
    Case("openvino", "perf_metrics", _batch(8, "decode"), None, 8, 1),
    Case("llamacpp", "llama-bench", _batch(1, "decode"), own_tools.llama_bench, 3, 3),
    Case("llamacpp", "llama-batched-bench", _batch(8, "decode"), own_tools.llama_batched, 3, 3),
)
ROOM_STREAMS = 32
ROOM_CONTEXT = 256


@dataclass(frozen=True)
class Agreement:
    """One case with one form."""

    peer: str
    form: str
    tool: str
    work: Work
    theirs: Spread | None
    ours: Spread | None
    ratio: Ratio | None
    """Theirs over ours; None where there are too few pairs, or a problem."""
    problem: str | None = None

    @property
    def verdict(self) -> str:
        if self.problem is not None:
            return self.problem
        if self.ratio is None:
            return f"no result, an interval takes {LEAST_PAIRS} pairs"
        if self.ratio.low >= 1 - NEAR and self.ratio.high <= 1 + NEAR:
            return f"agrees within {NEAR:.0%}"
        if self.ratio.high < 1 - NEAR or self.ratio.low > 1 + NEAR:
            return f"differs by more than {NEAR:.0%}"
        return f"not decided: the interval reaches over {NEAR:.0%}"

    def line(self) -> str:
        head = f"{self.peer} {self.form}, {self.tool}, {self.work.streams} x {self.work.prompt} + {self.work.output}"
        if self.theirs is None or self.ours is None:
            return f"{head}: {self.verdict}"
        middle = self.theirs.median / self.ours.median
        ratio = f"{middle:.3f}" if self.ratio is None else self._interval(self.ratio)
        noisy = "" if max(self.theirs.relative, self.ours.relative) <= NOISY else "; too noisy to be a result"
        return (
            f"{head}: its own {self.theirs.median:.1f}, ours {self.ours.median:.1f} {self.work.unit} "
            f"({self.work.figure}), own / ours {ratio}: {self.verdict}{noisy}"
        )

    @staticmethod
    def _interval(ratio: Ratio) -> str:
        return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f}, {ratio.pairs} pairs)"


@dataclass(frozen=True)
class Own:
    """Everything that was found."""

    agreements: tuple[Agreement, ...]
    others: float
    seed: int
    lines: tuple[str, ...]
    machine: dict[str, Any]

    def text(self) -> list[str]:
        found = [agreement.line() for agreement in self.agreements]
        return [*self.lines, *found, f"seed       {self.seed}", *noise(self.others, None)]

    def as_json(self) -> dict[str, Any]:
        rows = [{**asdict(one), "verdict": one.verdict} for one in self.agreements]
        return {
            "kind": "peers own",
            "machine": self.machine,
            "lines": self.lines,
            "seed": self.seed,
            "others": self.others,
            "agreements": rows,
        }


def own_room(threads: int) -> Room:
    """Holds every case."""
    return Room(ROOM_STREAMS, ROOM_CONTEXT, ROOM_STREAMS * (ROOM_CONTEXT + 32), threads)


def measure_own(
    forms: Sequence[tuple[str, str, Path]],
    environments: Mapping[str, Environment],
    vocab: int,
    threads: int,
    seed: int,
    say: Say,
    cases: Sequence[Case] = CASES,
) -> tuple[tuple[Agreement, ...], float]:
    """forms: (peer, name, path). What agrees, and what other processes took of the CPUs meanwhile."""
    room = own_room(threads)
    found = []
    with Watch() as watch, Guard() as guard:
        for peer, form, path in forms:
            for case in cases:
                if case.peer != peer:
                    continue
                say(f"{peer} {form}: {case.tool}")
                try:
                    found.append(_measure(case, Given(form, path, environments[peer], room), (guard, vocab, seed)))
                except (WorkerError, ToolError) as error:
                    found.append(Agreement(peer, form, case.tool, case.work, None, None, None, str(error)))
    return tuple(found), watch.share


def _measure(case: Case, given: Given, common: tuple[Guard, int, int]) -> Agreement:
    guard, vocab, seed = common
    make = http if case.way == "http" else offline
    contender = make(case.peer, given.form, given.model, given.environment, given.room)
    ours = _Ours(Worker(contender, guard, log_of(contender)), case.work, vocab, seed)
    theirs: _Program | _Ours
    if case.call is None:
        theirs = _Ours(_own_worker(contender, guard), case.work, vocab, seed + 1, "own_decode")
    else:
        theirs = _Program(case, given, guard)
    try:
        a, b = _turns(case, ours, theirs, random.Random(seed))
    finally:
        ours.close()
        theirs.close()
    ratio = paired_ratio(a, b, seed) if len(a) >= LEAST_PAIRS else None
    return Agreement(case.peer, given.form, case.tool, case.work, spread(b), spread(a), ratio)


def _turns(case: Case, ours: _Ours, theirs: _Program | _Ours, rng: random.Random) -> tuple[list[float], list[float]]:
    """Rates of both, as pairs of the same turn."""
    a: list[float] = []
    b: list[float] = []
    ours.start()
    theirs.start()
    for _ in range(case.turns):
        sides: list[tuple[_Program | _Ours, list[float]]] = [(ours, a), (theirs, b)]
        rng.shuffle(sides)
        for side, rates_of_side in sides:
            rates_of_side += side.rates(case.repeats)
        # A tool may give one value a run, whatever it was asked for.
        del a[len(b) :], b[len(a) :]
    return a, b


def _own_worker(contender: Contender, guard: Guard) -> Worker:
    command = (*contender.command[:-1], str(WORKERS / "openvino_own_worker.py"))
    own = Contender(contender.peer, f"{contender.form} own", command, contender.load, contender.changes)
    return Worker(own, guard, log_of(own))


class _Ours:
    """A worker that is loaded and stopped, and goes on for its turns. `extra`: the measure that is the rate."""

    def __init__(self, worker: Worker, work: Work, vocab: int, seed: int, extra: str | None = None) -> None:
        self._worker = worker
        self._work = work
        self._vocab = vocab
        self._rng = random.Random(seed)
        self._extra = extra

    def start(self) -> None:
        self._worker.start()
        self._worker.wait_ready(READY_SECONDS)
        self._one()
        self._worker.pause()

    def rates(self, count: int) -> list[float]:
        self._worker.resume()
        found = [self._one() for _ in range(count)]
        self._worker.pause()
        return found

    def _one(self) -> float:
        work = self._work
        made = random_workload(work.count, work.prompt, constant(work.output), self._vocab, self._rng.getrandbits(48))
        timing = self._worker.run([list(item.prompt) for item in made.items], work.output, RUN_SECONDS)
        if self._extra is not None:
            return timing.extra[self._extra]
        prefill, decode, output = rates(work, timing, None if timing.first is not None else timing.seconds)
        return {"prefill": prefill, "decode": decode, "output": output}[work.figure]

    def close(self) -> None:
        self._worker.kill()


class _Program:
    """A tool that is started anew for each turn, in a session of its own."""

    def __init__(self, case: Case, given: Given, guard: Guard) -> None:
        self._case = case
        self._given = given
        self._guard = guard

    def start(self) -> None:
        """It warms itself up."""

    def rates(self, count: int) -> list[float]:
        assert self._case.call is not None
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            call = self._case.call(self._given, self._case.work, count, out)
            return call.rates(self._run(call.command, Path(folder) / "log"), out)

    def _run(self, command: Sequence[str], log: Path) -> str:
        """Its standard output. ToolError with the last line of the other where it fails."""
        settings = child_environment(**changes(self._case.peer, self._given.room), PYTHONPATH="")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=settings,
            )
        self._guard.add(process.pid)
        try:
            printed, _ = process.communicate(timeout=_TOOL_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ToolError(f"{self._case.tool} did not end within {_TOOL_SECONDS:.0f} s") from error
        finally:
            kill_session(process.pid)
            process.wait()
            self._guard.drop(process.pid)
        if process.returncode != 0:
            lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise ToolError(f"{self._case.tool} ended with status {process.returncode}: {lines[-1][:200]}")
        return printed

    def close(self) -> None:
        """Nothing is left of it after a turn."""
