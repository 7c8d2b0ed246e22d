"""`octavo bench`: the instruments, each on the engine's own flags. Nothing is imported before it is asked for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from octavo.cli import bench_chaos, bench_peers, bench_serve
from octavo.cli.options import engine_options
from octavo.config import ConfigError, EngineConfig

_JSON = click.option(
    "--json", "json_path", type=click.Path(dir_okay=False), default=None, help="Write the result here."
)
_SEED = click.option("--seed", type=click.IntRange(0, 2**31), default=None, help="Of the work [drawn anew].")


class Sizes(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1 or max(numbers) > 4096:
            self.fail(f"{value!r} must be whole numbers from 1 to 4096, such as 1,8,32", param, ctx)
        return numbers


@click.group()
def bench() -> None:
    """Measure the engine, its settings against each other, and others beside it."""
    from importlib.util import find_spec

    if find_spec("psutil") is None:
        raise ConfigError("octavo bench needs psutil; pip install psutil, in Octavo's environment, would bring it")


bench.add_command(bench_serve.serve)
bench.add_command(bench_serve.compare)
bench.add_command(bench_serve.client)
bench.add_command(bench_peers.peers)
bench.add_command(bench_chaos.chaos)


@bench.command()
@engine_options
@click.option("--batch", "batches", type=Sizes(), default="1,8,32", show_default=True, help="Requests at once.")
@click.option("--prompt-tokens", type=click.IntRange(1, 1 << 20), default=128, show_default=True)
@click.option("--output-tokens", type=click.IntRange(2, 1 << 20), default=64, show_default=True)
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True)
@_SEED
@_JSON
def offline(
    engine: EngineConfig,
    batches: tuple[int, ...],
    prompt_tokens: int,
    output_tokens: int,
    repeats: int,
    seed: int | None,
    json_path: str | None,
) -> None:
    """Prefill and decode throughput by batch size, without a server."""
    from octavo.bench.arm import Arm
    from octavo.bench.offline import measure_offline

    with Arm("offline", _roomy(engine, max(batches), prompt_tokens + output_tokens)) as arm:
        report = measure_offline(arm, batches, prompt_tokens, output_tokens, repeats, draw_seed(seed), bench_progress())
    show(report.text(), report.as_json(), json_path)


@bench.command()
@engine_options
@click.option("--batch", type=click.IntRange(1, 4096), default=8, show_default=True, help="Rows of the step.")
@click.option("--context", type=click.IntRange(2, 1 << 20), default=160, show_default=True, help="Tokens of context.")
@click.option("--steps", type=click.IntRange(4, 10_000), default=40, show_default=True)
@_SEED
@_JSON
def step(engine: EngineConfig, batch: int, context: int, steps: int, seed: int | None, json_path: str | None) -> None:
    """Where a decode step's time goes: native by op, host by part."""
    from octavo.bench.arm import Arm
    from octavo.bench.step import measure_step, metered

    config = _roomy(engine, batch, context + steps)
    arm, meter = metered(lambda wrap: Arm("step", config, wrap))
    with arm:
        report = measure_step(arm, meter, batch, context, steps, draw_seed(seed))
    show(report.text(), report.as_json(), json_path)


@bench.command()
@engine_options
@click.option("--batch", "batches", type=Sizes(), default="1,8,32", show_default=True, help="Rows of the step.")
@click.option("--context", type=click.IntRange(2, 1 << 20), default=160, show_default=True, help="Tokens of context.")
@click.option("--steps", type=click.IntRange(4, 10_000), default=40, show_default=True)
@_SEED
@_JSON
def micro(
    engine: EngineConfig, batches: tuple[int, ...], context: int, steps: int, seed: int | None, json_path: str | None
) -> None:
    """Each op alone: time, GB/s, GFLOP/s and the share of the machine's limit."""
    from octavo.bench.arm import Arm
    from octavo.bench.micro import measure_micro
    from octavo.bench.step import metered

    config = _roomy(engine, max(batches), context + steps)
    arm, meter = metered(lambda wrap: Arm("micro", config, wrap))
    with arm:
        report = measure_micro(arm, meter, list(batches), context, steps, draw_seed(seed))
    show(report.text(), report.as_json(), json_path)


@bench.command()
@engine_options
@click.option("--pair", default=None, help="A ready-made pair; without it and --a and --b: lists them.")
@click.option("--a", "a_flags", default=None, help="Flags of one setting, as one text, instead of --pair.")
@click.option("--b", "b_flags", default=None, help="Flags of the other.")
@click.option("--pairs", type=click.IntRange(6, 10_000), default=30, show_default=True, help="Pairs of runs.")
@click.option("--seconds", type=click.FloatRange(1), default=None, help="End after this long, if six pairs are done.")
@click.option("--batch", type=click.IntRange(1, 4096), default=8, show_default=True, help="With --a and --b.")
@click.option(
    "--prompt-tokens", type=click.IntRange(1, 1 << 20), default=64, show_default=True, help="With --a and --b."
)
@click.option(
    "--output-tokens", type=click.IntRange(2, 1 << 20), default=32, show_default=True, help="With --a and --b."
)
@_SEED
@_JSON
def ablate(
    engine: EngineConfig,
    pair: str | None,
    a_flags: str | None,
    b_flags: str | None,
    seed: int | None,
    json_path: str | None,
    **work: Any,
) -> None:
    """Compare two settings, a ready-made pair or any two: interleaved, outputs compared, with an interval."""
    from octavo.bench import ablate as ab

    if pair is None and a_flags is None and b_flags is None:
        for known, make in ab.PAIRS.items():
            click.echo(f"{known:18s} {make().question}")
        return
    question = _question(engine, pair, a_flags, b_flags, work)
    base = ab.base_config(engine)
    from octavo.bench.arm import Arm

    with Arm("A", question.a(base)) as a, Arm("B", question.b(base)) as b:
        progress = bench_progress()
        found = ab.measure(
            question, (a, b), work["pairs"], draw_seed(seed), work["seconds"], lambda done: progress(f"pair {done}")
        )
    show(found.text(), ab.finding_json(found), json_path)
    if not found.sound:
        raise SystemExit(1)


def _question(engine: EngineConfig, name: str | None, a: str | None, b: str | None, work: dict[str, Any]) -> Any:
    from octavo.bench import ablate as ab

    if name is not None:
        if a is not None or b is not None:
            raise ConfigError("--pair and --a/--b exclude each other; leave --pair out to compare flags of your own")
        if name not in ab.PAIRS:
            raise ConfigError(f"--pair {name!r} is not known; use one of {', '.join(ab.PAIRS)}, or --a and --b")
        return ab.PAIRS[name]()
    path = engine.model.path
    return ab.own_pair(
        _parse(path, a or ""), _parse(path, b or ""), work["batch"], work["prompt_tokens"], work["output_tokens"]
    )


def _parse(model: str, flags: str) -> EngineConfig:
    """A configuration from the text of engine flags."""
    found: list[EngineConfig] = []

    @click.command()
    @engine_options
    def take(engine: EngineConfig) -> None:
        found.append(engine)

    arguments = ([model] if model else []) + shlex.split(flags)
    try:
        take.main(arguments, standalone_mode=False)
    except click.ClickException as error:
        raise ConfigError(f"{flags!r}: {error.format_message()}") from error
    return found[0]


def _roomy(engine: EngineConfig, requests: int, tokens: int) -> EngineConfig:
    """A pool and a batch that hold the work, where the flags say nothing of them."""
    from dataclasses import replace

    kv, scheduler = engine.kv, engine.scheduler
    if kv.size_tokens is None and kv.size_bytes is None:
        kv = replace(kv, size_tokens=requests * (-(-tokens // kv.block_size) + 1) * kv.block_size)
    if scheduler.max_num_seqs < requests:
        scheduler = replace(scheduler, max_num_seqs=requests)
    return replace(engine, kv=kv, scheduler=scheduler)


def draw_seed(seed: int | None) -> int:
    """The seed that was given, or a new one."""
    import secrets

    return secrets.randbelow(1 << 31) if seed is None else seed


def bench_progress() -> Callable[[str], None]:
    """Tells how far it is, on a terminal alone."""
    import sys

    def tell(what: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{what}", nl=False, err=True)

    return tell


def show(lines: list[str], result: dict[str, Any], path: str | None) -> None:
    """The report to a person, and the result to a file."""
    import sys

    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
    for line in lines:
        click.echo(line)
    if path is not None:
        Path(path).write_text(json.dumps(result, indent=1) + "\n")
