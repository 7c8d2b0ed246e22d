"""Two settings of one engine against each other: the same work, in turns of a few steps, outputs compared, a ratio with
its interval. A technique that exists has a ready-made pair here; any other two settings are compared by their flags.

The order within a pair is drawn anew for each, and every pair has work of its own seed. Off switch: none.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from octavo.bench.arm import Arm, Run, take_turns
from octavo.bench.machine import Watch, as_json, header, noise
from octavo.bench.offline import limits_of
from octavo.bench.predict import Prediction, by_batching, by_chunks
from octavo.bench.stats import LEAST_PAIRS, Ratio, paired_ratio, spread
from octavo.bench.workload import Workload, constant, exponential, random_workload
from octavo.config import EngineConfig, ExecutionConfig, KVConfig, SchedulerConfig, SpeculativeConfig

Make = Callable[[int, int], Workload]
"""(vocabulary, seed) -> the work of one pair."""
Change = Callable[[EngineConfig], EngineConfig]


@dataclass(frozen=True)
class Pair:
    """A question: how many times as much of `metric` has B as A?"""

    question: str
    a: Change
    b: Change
    make: Make
    metric: Callable[[Run], float] = lambda run: run.rate
    unit: str = "output tokens a second"
    same_outputs: bool = True
    """Both settings must give the same tokens."""
    predict: Prediction | None = None
    """The ratio that the work itself predicts."""


def _kv(**values: Any) -> Change:
    return lambda config: replace(config, kv=replace(config.kv, **values))


def _scheduler(**values: Any) -> Change:
    return lambda config: replace(config, scheduler=replace(config.scheduler, **values))


def _execution(**values: Any) -> Change:
    return lambda config: replace(config, execution=replace(config.execution, **values))


def _pressed(**values: Any) -> Change:
    """A pool that is too small for its requests."""

    def change(config: EngineConfig) -> EngineConfig:
        config = _kv(size_tokens=1536, prefix_cache=False)(_scheduler(**values)(config))
        return replace(config, model=replace(config.model, max_model_len=512))

    return change


def _same(config: EngineConfig) -> EngineConfig:
    return config


def batching_pair(rows: int, mean: int = 48, most: int = 192, batches: int = 4, even: bool = False) -> Pair:
    """Continuous against static batching with `rows` rows a step; even: all answers have the mean length."""
    lengths = constant(mean) if even else exponential(mean, most)
    few = {"max_num_seqs": rows}
    return Pair(
        question=f"continuous (B) against static batching (A), {rows} rows, "
        f"{'equal' if even else 'exponential'} lengths of {mean} on average",
        a=_scheduler(policy="static", **few),
        b=_scheduler(policy="continuous", **few),
        make=lambda vocab, seed: random_workload(rows * batches, 16, lengths, vocab, seed),
        predict=by_batching,
    )


def shared_prefix_pair(streams: int, prefix: int, output: int) -> Pair:
    """Decoding of so many streams on one prefix, whose pages the prefix cache makes them share."""
    room = {"size_tokens": prefix + streams * (output + 96)}
    few = {"max_num_seqs": streams}
    return Pair(
        f"shared-prefix attention on (B) against off (A), {streams} streams on one prefix of {prefix} tokens",
        lambda config: _scheduler(**few)(_kv(**room)(_execution(shared_prefix_attention=False)(config))),
        lambda config: _scheduler(**few)(_kv(**room)(_execution(shared_prefix_attention=True)(config))),
        lambda vocab, seed: random_workload(streams, prefix + 8, constant(output), vocab, seed, shared=prefix),
        metric=lambda run: run.decode_rate,
        unit="tokens a second while all decode",
    )


def speculation_pair(streams: int, temperature: float, what: str, tokens: int = 96) -> Pair:
    """N-gram drafts against none."""
    few = {"max_num_seqs": streams}
    return Pair(
        f"--speculative ngram (B) against off (A), {what}",
        _scheduler(**few),
        lambda config: replace(_scheduler(**few)(config), speculative=SpeculativeConfig("ngram")),
        lambda vocab, seed: random_workload(streams, 64, constant(tokens), vocab, seed, temperature=temperature),
        metric=lambda run: run.decode_rate,
        unit="tokens a second while all decode",
    )


def chunks_pair(what: str, metric: Callable[[Run], float]) -> Pair:
    """Chunked prefill against whole prompts, by the gaps that streams see while long prompts arrive."""

    def setting(most: int, chunked: bool) -> Change:
        change = _scheduler(chunked_prefill=chunked, max_num_batched_tokens=most)
        return lambda config: change(replace(config, model=replace(config.model, max_model_len=1200)))

    return Pair(
        f"{what} between two tokens, chunks of 64 (B) against whole prompts (A), 8 streams and prompts of 1000",
        setting(1200, chunked=False),
        setting(64, chunked=True),
        lambda vocab, seed: _streams_and_prompts(vocab, seed),
        metric=metric,
        unit=f"seconds, {what}",
        predict=by_chunks,
    )


PAIRS: dict[str, Callable[[], Pair]] = {
    "null": lambda: Pair(
        "one setting against itself: the ratio must be 1",
        _same,
        _same,
        lambda vocab, seed: random_workload(8, 32, constant(16), vocab, seed),
    ),
    "batching": lambda: batching_pair(8),
    "batching-32": lambda: batching_pair(32, batches=3),
    "batching-even": lambda: batching_pair(8, even=True),
    "prefix-cache": lambda: Pair(
        "prefix cache on (B) against off (A), 12 prompts of 512 tokens that share 448",
        lambda config: _scheduler(max_num_seqs=1)(_kv(prefix_cache=False)(config)),
        lambda config: _scheduler(max_num_seqs=1)(_kv(prefix_cache=True)(config)),
        lambda vocab, seed: random_workload(12, 512, constant(4), vocab, seed, shared=448),
    ),
    "prefix-cache-miss": lambda: Pair(
        "prefix cache on (B) against off (A) where nothing is shared: the tax",
        _kv(prefix_cache=False),
        _kv(prefix_cache=True),
        lambda vocab, seed: random_workload(8, 128, constant(16), vocab, seed),
    ),
    "chunked-prefill": lambda: chunks_pair("longest gap", lambda run: run.longest_gap),
    "chunked-prefill-p99": lambda: chunks_pair("P99 of the gaps", lambda run: run.p99_gap),
    "target-itl": lambda: Pair(
        "P99 of the gaps, --target-itl-ms 40 (B) against whole budgets of 512 (A), 8 streams and prompts of 1000",
        _scheduler(max_num_batched_tokens=512),
        _scheduler(max_num_batched_tokens=512, target_itl_ms=40.0),
        lambda vocab, seed: _streams_and_prompts(vocab, seed),
        metric=lambda run: run.p99_gap,
        unit="seconds, P99 of the gaps",
    ),
    "tenant-fairness": lambda: Pair(
        "fair shares between tenants on (B) against off (A) with one tenant: the tax",
        _scheduler(tenant_fairness=False),
        _scheduler(tenant_fairness=True),
        lambda vocab, seed: random_workload(24, 32, constant(16), vocab, seed),
    ),
    "partial-preemption": lambda: Pair(
        "partial (B) against whole preemption (A), 8 answers of 192 tokens to 128 in a pool of 1536, no prefix cache",
        _pressed(partial_preemption=False),
        _pressed(partial_preemption=True),
        lambda vocab, seed: random_workload(8, 128, constant(192), vocab, seed),
    ),
    "paged": lambda: Pair(
        "paged (B) against one contiguous block a request (A), the same pool",
        lambda config: _kv(paged=False, size_tokens=8192)(
            replace(config, model=replace(config.model, max_model_len=1024))
        ),
        lambda config: _kv(paged=True, size_tokens=8192)(
            replace(config, model=replace(config.model, max_model_len=1024))
        ),
        lambda vocab, seed: random_workload(32, 64, constant(32), vocab, seed),
    ),
    "attention": lambda: Pair(
        "tiled attention (B) against the three-step product (A), prompts of 768 tokens",
        _execution(attention="naive"),
        _execution(attention="tiled"),
        lambda vocab, seed: random_workload(2, 768, constant(8), vocab, seed),
        same_outputs=False,
    ),
    "program": lambda: Pair(
        "one native call a step (B) against one an op (A), one stream",
        _execution(program=False),
        _execution(program=True),
        lambda vocab, seed: random_workload(1, 16, constant(48), vocab, seed),
    ),
    "shared-prefix": lambda: shared_prefix_pair(32, 2048, 24),
    "speculation": lambda: speculation_pair(1, 0.0, "one stream of random ids, whose answers soon repeat themselves"),
    "speculation-tax": lambda: speculation_pair(16, 1.0, "16 sampled streams, where there is little to guess: the tax"),
    "threads": lambda: Pair(
        "all threads (B) against one (A), 8 streams",
        _execution(threads=1),
        _same,
        lambda vocab, seed: random_workload(8, 64, constant(24), vocab, seed),
    ),
}
"""Ready-made questions, one at least for each technique."""


def _streams_and_prompts(vocab: int, seed: int) -> Workload:
    short = random_workload(8, 16, constant(96), vocab, seed)
    long = random_workload(2, 1000, constant(2), vocab, seed + 1)
    return Workload(short.items + long.items, seed)


@dataclass(frozen=True)
class Finding:
    """The answer to a pair's question."""

    question: str
    unit: str
    ratio: Ratio
    a: tuple[float, ...]
    b: tuple[float, ...]
    predicted: float | None
    different: int
    """Pairs whose outputs differ."""
    same_outputs: bool
    seed: int
    others: float
    """Share of the machine that other processes took meanwhile."""
    seconds: float
    lines: tuple[str, ...]
    machine: dict[str, Any]

    @property
    def sound(self) -> bool:
        """Outputs are what they must be."""
        return not (self.same_outputs and self.different)

    def text(self) -> list[str]:
        """The report."""
        a, b = spread(self.a), spread(self.b)
        lines = [
            *self.lines,
            f"question   {self.question}",
            f"A          {a.median:.4g} {self.unit} (quartiles {a.low:.4g} to {a.high:.4g})",
            f"B          {b.median:.4g} {self.unit} (quartiles {b.low:.4g} to {b.high:.4g})",
            f"B / A      {self.ratio.text()}",
        ]
        if self.predicted is not None:
            lines.append(f"predicted  {self.predicted:.3f} from the measured cost of steps: {self.share:.2f} of it")
        lines.append(f"outputs    {self._outputs()}")
        each = self.seconds / self.ratio.pairs
        lines.append(f"took       {self.seconds:.0f} s, {each:.2g} s a pair (warm-up and step costs included)")
        return [*lines, f"seed       {self.seed}", *noise(self.others, None)]

    @property
    def share(self) -> float:
        """Of the predicted ratio."""
        assert self.predicted is not None
        return self.ratio.value / self.predicted

    def _outputs(self) -> str:
        if not self.different:
            return "the same tokens in every pair"
        verb = "must not differ, and do" if self.same_outputs else "may differ, and do"
        return f"{verb} in {self.different} of {self.ratio.pairs} pairs"


def measure(
    pair: Pair,
    arms: tuple[Arm, Arm],
    pairs: int,
    seed: int,
    limit_seconds: float | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Finding:
    """Runs the pairs on arms that are loaded. limit_seconds ends early, after LEAST_PAIRS at least."""
    a_arm, b_arm = arms
    rng = random.Random(seed)
    vocab = a_arm.info.num_tokens
    began = time.monotonic()
    for arm in arms:
        arm.run(pair.make(vocab, seed))
    a: list[float] = []
    b: list[float] = []
    different = 0
    predictions: list[float] = []
    predict = pair.predict(arms, pair.make(vocab, seed)) if pair.predict else None
    with Watch() as watch:
        for index in range(pairs):
            work = pair.make(vocab, rng.getrandbits(48))
            if rng.random() < 0.5:
                one, two = take_turns((a_arm, b_arm), work)
            else:
                two, one = take_turns((b_arm, a_arm), work)
            a.append(pair.metric(one))
            b.append(pair.metric(two))
            different += one.outputs != two.outputs
            if predict is not None:
                predictions.append(predict(work))
            progress(index + 1)
            if limit_seconds and index + 1 >= LEAST_PAIRS and time.monotonic() - began > limit_seconds:
                break
    execution = b_arm.config.execution
    assert execution.isa is not None and execution.threads is not None
    limits = limits_of(b_arm)
    return Finding(
        question=pair.question,
        unit=pair.unit,
        ratio=paired_ratio(a, b, seed),
        a=tuple(a),
        b=tuple(b),
        predicted=spread(predictions).median if predictions else None,
        different=different,
        same_outputs=pair.same_outputs,
        seed=seed,
        others=watch.share,
        seconds=time.monotonic() - began,
        lines=tuple(header(execution.isa, execution.threads, limits)),
        machine=as_json(limits),
    )


def finding_json(found: Finding) -> dict[str, Any]:
    """For result files."""
    return asdict(found)


def own_pair(a: EngineConfig, b: EngineConfig, count: int, prompt: int, output: int) -> Pair:
    """Two settings given whole, by their flags."""
    return Pair(
        "the flags of --b (B) against those of --a (A)",
        lambda config: a,
        lambda config: b,
        lambda vocab, seed: random_workload(count, prompt, constant(output), vocab, seed),
        same_outputs=_numbers(a) == _numbers(b),
    )


def _numbers(config: EngineConfig) -> tuple[str, ...]:
    """The part of a configuration that may change tokens."""
    return (config.model.path, config.model.precision, config.execution.attention, config.execution.backend)


def base_config(config: EngineConfig) -> EngineConfig:
    """A pool that holds every ready-made workload, where none was asked for."""
    if config.kv == KVConfig() and config.scheduler == SchedulerConfig() and config.execution == ExecutionConfig():
        return replace(config, kv=KVConfig(size_tokens=16384))
    return config
