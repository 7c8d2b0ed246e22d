"""`octavo bench chaos`: its flags. Nothing is imported before it is asked for."""

from __future__ import annotations

import click

from octavo.cli.options import engine_options
from octavo.config import ConfigError, EngineConfig


class Between(click.ParamType[tuple[int, int]]):
    """Two whole numbers with a dash between, or one."""

    name = "tokens"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        low, _, high = str(value).partition("-")
        try:
            found = int(low), int(high or low)
        except ValueError:
            found = (0, 0)
        if not 1 <= found[0] <= found[1] <= 1 << 20:
            self.fail(f"{value!r} must be two whole numbers such as 50-500", param, ctx)
        return found


@click.command()
@engine_options
@click.option("--requests", type=click.IntRange(1, 100_000), default=64, show_default=True)
@click.option("--streams", type=click.IntRange(1, 4096), default=32, show_default=True, help="Requests at a time.")
@click.option("--prompt-tokens", type=Between(), default="50-500", show_default=True)
@click.option("--output-tokens", type=Between(), default="200-600", show_default=True)
@click.option("--faults", type=click.IntRange(0, 1000), default=5, show_default=True, help="Faults, one an engine.")
@click.option("--every", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Steps to a fault.")
@click.option("--kinds", default=None, help="Kinds of faults, with commas between  [default: all]")
@click.option("--poison", default=None, help="One request kills each engine that runs it, by this kind of fault.")
@click.option("--kill-every", type=click.FloatRange(0.1), default=None, help="SIGKILL from outside, in seconds.")
@click.option("--seconds", type=click.FloatRange(1), default=None, help="Repeat the requests for so long.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=None, help="Replays a run  [drawn anew]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), default=None, help="Write the result here.")
def chaos(engine: EngineConfig, json_path: str | None, seed: int | None, **work: object) -> None:
    """Break the engine under load, and compare every stream with the undisturbed run.

    It starts two servers of its own on MODEL. A seed stands for the requests and the faults. It ends with status 1
    where a stream is lost or differs.
    """
    from typing import Any

    from octavo.bench.chaos.plan import FAULTS, Sizes, make_plan
    from octavo.bench.chaos.run import measure
    from octavo.cli.bench import bench_progress, draw_seed, show
    from octavo.cli.main import with_model
    from octavo.models.tokenizer import load_tokenizer

    options: dict[str, Any] = work
    kinds = tuple(options["kinds"].split(",")) if options["kinds"] else FAULTS
    for kind in (*kinds, *filter(None, [options["poison"]])):
        if kind not in FAULTS:
            raise ConfigError(f"{kind!r} is no kind of fault; use one of {', '.join(FAULTS)}")
    if options["poison"] == "kill":
        raise ConfigError("--poison kill looks like a kill from outside, for which nobody is failed; segv would work")
    engine = with_model(engine)
    sizes = Sizes(options["requests"], options["streams"], options["prompt_tokens"], options["output_tokens"])
    vocabulary = load_tokenizer(engine.model.path).num_tokens
    plan = make_plan(draw_seed(seed), sizes, vocabulary, options["faults"], options["every"], kinds, options["poison"])
    report = measure(engine, plan, options["kill_every"], options["seconds"], bench_progress())
    show(report.text(), report.as_json(), json_path)
    if not report.whole:
        raise SystemExit(1)
