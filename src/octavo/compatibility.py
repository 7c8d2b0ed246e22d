"""The compatibility table: every pair of techniques either works, and a test runs the two together, or is refused by
`config.resolve()` with the reason. docs/compatibility.md is this table; `octavo doctor --compatibility` prints it.

Owns the list of what can be switched. Nothing of the engine reads it. Off switch: none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from octavo.config import (
    ConfigError,
    EngineConfig,
    Facts,
    KVConfig,
    KVShape,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    resolve,
)

TEST = "tests/exact/test_compatibility.py::test_two_settings_together_give_the_answers_of_neither"
_LENGTH = 640
_TOKENS = 4096
Change = Callable[[EngineConfig], EngineConfig]


@dataclass(frozen=True)
class Technique:
    """A setting that is not the default, or a kind of model."""

    name: str
    flags: str
    change: Change
    window: int | None = None
    """The model's layers see so many tokens."""
    numerics: bool = False
    """Bits may differ from the default's (never with the load)."""


@dataclass(frozen=True)
class Pair:
    """Two techniques together."""

    one: Technique
    two: Technique
    refusal: str | None


def _kv(**values: Any) -> Change:
    return lambda config: replace(config, kv=replace(config.kv, **values))


def _scheduler(**values: Any) -> Change:
    return lambda config: replace(config, scheduler=replace(config.scheduler, **values))


def _execution(**values: Any) -> Change:
    return lambda config: replace(config, execution=replace(config.execution, **values))


def _ngram(config: EngineConfig) -> EngineConfig:
    return replace(config, speculative=SpeculativeConfig("ngram", 6, adaptive=False))


def _float32(config: EngineConfig) -> EngineConfig:
    return replace(config, model=replace(config.model, precision="float32"))


def _integer(config: EngineConfig) -> EngineConfig:
    return replace(config, model=replace(config.model, dequantisation="integer"))


TECHNIQUES = (
    Technique("static batching", "--policy static", _scheduler(policy="static")),
    Technique("whole prompts", "--no-chunked-prefill", _scheduler(chunked_prefill=False)),
    Technique("priorities", "--scheduling-policy priority", _scheduler(order="priority")),
    Technique("reserved memory", "--no-paged", _kv(paged=False)),
    Technique("no prefix cache", "--no-prefix-cache", _kv(prefix_cache=False)),
    Technique("LRU eviction", "--eviction lru", _kv(eviction="lru")),
    Technique("disk tier", "--kv-disk DIR", _kv(disk="DIR")),
    Technique("window layers", "a model with sliding windows", lambda config: config, window=40),
    Technique("shared prefixes", "--shared-prefix-attention", _execution(shared_prefix_attention=True)),
    Technique("no shared prefixes", "--no-shared-prefix-attention", _execution(shared_prefix_attention=False)),
    Technique("n-gram drafts", "--speculative ngram", _ngram),
    Technique("naive attention", "--attention naive", _execution(attention="naive"), numerics=True),
    Technique("float32", "--precision float32", _float32, numerics=True),
    Technique("integer products", "--dequantisation integer", _integer, numerics=True),
    Technique("program off", "--no-program", _execution(program=False)),
    Technique("one thread", "--threads 1", _execution(threads=1)),
    Technique("portable kernels", "--isa portable", _execution(isa="portable")),
    Technique("reference", "--backend reference", _execution(backend="reference"), numerics=True),
)


def base() -> EngineConfig:
    """The default settings at sizes that a test can run; each technique changes it."""
    return EngineConfig(
        model=ModelConfig(max_model_len=_LENGTH),
        kv=KVConfig(size_tokens=_TOKENS),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=_LENGTH),
    )


def same_setting(one: Technique, two: Technique) -> bool:
    """Both set the same thing, so there is no such pair."""
    return {one.name, two.name} == {"shared prefixes", "no shared prefixes"}


def pairs() -> list[Pair]:
    """Every two techniques, as `resolve()` judges them."""
    return [Pair(a, b, _refusal(a, b)) for a, b in combinations(TECHNIQUES, 2) if not same_setting(a, b)]


def _refusal(one: Technique, two: Technique) -> str | None:
    window = one.window or two.window
    shape = KVShape(0, ((window, 4096),)) if window else KVShape(4096)
    facts = Facts(
        max_context=8192,
        kv=shape,
        weights_bytes=1 << 20,
        row_bytes=4096,
        vocab=1000,
        available_bytes=8 << 30,
        cpus=2,
        isas=("avx2", "portable"),
    )
    config = two.change(one.change(base()))
    try:
        resolve(config, facts)
    except ConfigError as error:
        return str(error)
    return None


def lines() -> list[str]:
    """The table as a page of Markdown."""
    found = pairs()
    refused = [pair for pair in found if pair.refusal is not None]
    out = [
        "# What works together",
        "",
        "Made from `config.resolve()` by `octavo doctor --compatibility`; a test keeps it current. The defaults",
        "(continuous batching, chunked prefill, pages, prefix cache, tiled attention, shared prefixes, bf16, one",
        "native call a step) work together: every other test runs them. Each setting below is not the default.",
        "",
        "| | setting | may change bits |",
        "|---|---|---|",
    ]
    out += [
        f"| {number} | {one.name}: `{one.flags}` | {'yes' if one.numerics else 'no'} |" for number, one in _numbered()
    ]
    out += [
        "",
        f"`+`: tested together, several requests with `n` = 2 on one prefix, by `{TEST}`.",
        "`x`: refused with the reason below. `=`: two values of one setting.",
        "",
        "| | " + " | ".join(str(number) for number, _ in _numbered()) + " |",
        "|---" * (len(TECHNIQUES) + 1) + "|",
    ]
    judged = {frozenset((pair.one.name, pair.two.name)): pair for pair in found}
    for number, one in _numbered():
        cells = [_cell(one, two, judged) for two in TECHNIQUES]
        out.append(f"| {number} {one.name} | " + " | ".join(cells) + " |")
    out += ["", "## Refused, and why", ""]
    out += [f"- {pair.one.name} with {pair.two.name}: {pair.refusal}" for pair in refused]
    return out


def _numbered() -> list[tuple[int, Technique]]:
    return list(enumerate(TECHNIQUES, 1))


def _cell(one: Technique, two: Technique, judged: dict[frozenset[str], Pair]) -> str:
    if one is two:
        return ""
    if same_setting(one, two):
        return "="
    return "+" if judged[frozenset((one.name, two.name))].refusal is None else "x"
