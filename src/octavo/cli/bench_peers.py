"""`octavo bench peers`: Octavo beside vLLM, OpenVINO and llama.cpp. Nothing is imported before it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from octavo.config import ConfigError


class Names(click.ParamType[tuple[str, ...]]):
    """Words with commas between."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


@click.command()
@click.argument("names", nargs=-1)
@click.option("--setup", is_flag=True, help="Make the environments of NAMES, or of all, and end.")
@click.option("--peers", type=Names(), default="", help="Engines to compare with, commas between [all].")
@click.option("--forms", type=Names(), default="", help="Such as int8, or openvino:int8, commas between [all].")
@click.option("--workloads", type=Names(), default="", help="Such as decode-8, commas between [all].")
@click.option("--model", type=click.Path(exists=True, dir_okay=False), default=None, help="A GGUF file [the default].")
@click.option("--quick", is_flag=True, help="Short answers, up to 32 streams: under 25 minutes.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=None, help="[6 with --quick, else 10]")
@click.option("--threads", type=click.IntRange(1, 1024), default=None, help="Of every engine [the CPUs there are].")
@click.option("--openvino-kv", type=click.Choice(["u8", "f16", "bf16", "f32"]), default=None, help="[its default]")
@click.option("--way", "ways", type=Names(), default="", help="offline or http: without or with servers [both].")
@click.option("--own", is_flag=True, help="Hold our figures against each engine's own benchmark, and end.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=None, help="Of the work [drawn anew].")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), default=None, help="Write the result here.")
@click.option("--html", "html_path", type=click.Path(dir_okay=False), default=None, help="Write a page with plots.")
@click.option(
    "--from", "stored", type=click.Path(dir_okay=False), default=None, help="A file of --json: write its page."
)
def peers(names: tuple[str, ...], setup: bool, **options: Any) -> None:
    """Measure Octavo beside other engines, in turns, on the same work.

    First `octavo bench peers --setup`, which installs them into environments of their own in the cache (several GB).
    NAMES: vllm, openvino, llamacpp.
    """
    if setup:
        _set_up(names)
        return
    if names:
        raise ConfigError(f"names go with --setup; --peers {','.join(names)} would compare with them")
    if options["stored"] is not None:
        _show_again(options["stored"], options["html_path"])
        return
    _check(options["peers"], "--peers")
    if options["own"]:
        _hold_against_own(options)
        return
    _compare(options)


_NOT_OWN = ("workloads", "quick", "rounds", "ways", "html_path", "openvino_kv")


def _hold_against_own(options: dict[str, Any]) -> None:
    from octavo import _native
    from octavo.bench.peers import plan as planning
    from octavo.bench.peers.run import run_own
    from octavo.cli.bench import bench_progress, draw_seed, show
    from octavo.cli.bench_serve import check_folder
    from octavo.models.store import default_model

    if given := [name for name in _NOT_OWN if options[name]]:
        flag = {"ways": "way", "html_path": "html"}.get(given[0], given[0].replace("_", "-"))
        raise ConfigError(f"--{flag} means nothing to --own, whose works are fixed; leave it out")
    check_folder("--json", options["json_path"])
    _check_set_up(options["peers"])
    source = planning.read_source(Path(options["model"]) if options["model"] else default_model())
    forms = [form for form in planning.choose_forms(options["peers"], options["forms"]) if form.peer != "octavo"]
    threads = options["threads"] or _native.cpu_count()
    tell = bench_progress()
    found = run_own(source, forms, threads, draw_seed(options["seed"]), click.echo, tell)
    show(found.text(), found.as_json(), options["json_path"])
    if not found.agreements:
        raise SystemExit(1)


def _show_again(stored: str, html_path: str | None) -> None:
    from octavo.bench.peers.result import read

    if html_path is None:
        raise ConfigError("--from goes with --html; --html report.html would work")
    _check_html(html_path)
    _write_page(read(stored), html_path)


def _check_html(path: str | None) -> None:
    """Before the run, which is long."""
    from importlib.util import find_spec

    from octavo.cli.bench_serve import check_folder

    check_folder("--html", path)
    if path is not None and find_spec("matplotlib") is None:
        raise ConfigError("--html needs matplotlib; pip install matplotlib, in Octavo's environment, would bring it")


def _write_page(result: dict[str, Any], path: str) -> None:
    from octavo.bench.peers.html_report import report_html

    Path(path).write_text(report_html(result), encoding="utf-8")
    click.echo(f"page       {path}")


def _check(names: tuple[str, ...], where: str) -> None:
    from octavo.bench.peers.environments import PEERS

    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ConfigError(f"{where} {' '.join(unknown)} is not known; {', '.join(PEERS)} would work")


def _check_set_up(names: tuple[str, ...]) -> None:
    """Before anything is fetched or made: one engine at least must be there to compare with."""
    from octavo.bench.peers.environments import PEERS, find

    wanted = names or tuple(PEERS)
    if all(find(name) is None for name in wanted):
        raise ConfigError(f"{', '.join(wanted)}: not set up; octavo bench peers --setup {' '.join(wanted)} would do it")


def _set_up(names: tuple[str, ...]) -> None:
    from octavo.bench.peers.environments import PEERS, setup

    _check(names, "--setup")
    if setup(names or PEERS, click.echo):
        raise SystemExit(1)


def _compare(options: dict[str, Any]) -> None:
    from octavo import _native
    from octavo.bench.peers import plan as planning
    from octavo.bench.peers.run import run_comparison
    from octavo.cli.bench import bench_progress, draw_seed, show
    from octavo.cli.bench_serve import check_folder
    from octavo.models.store import default_model

    check_folder("--json", options["json_path"])
    _check_html(options["html_path"])
    ways = options["ways"] or planning.WAYS
    if unknown := [way for way in ways if way not in planning.WAYS]:
        raise ConfigError(f"--way {','.join(unknown)} is not known; {' or '.join(planning.WAYS)} would work")
    works = planning.choose_works(options["workloads"], options["quick"], ways)
    forms = planning.choose_forms(options["peers"], options["forms"])
    _check_set_up(options["peers"])
    source = planning.read_source(Path(options["model"]) if options["model"] else default_model())
    rounds = options["rounds"] or (planning.QUICK_ROUNDS if options["quick"] else planning.FULL_ROUNDS)
    tell = bench_progress()
    plan = planning.make_plan(
        source, forms, works, options["threads"] or _native.cpu_count(), options["openvino_kv"], click.echo
    )
    lines, result = run_comparison(plan, source, rounds, draw_seed(options["seed"]), options["quick"], tell)
    show(lines, result, options["json_path"])
    if options["html_path"] is not None:
        _write_page(result, options["html_path"])
    if not result["ratios"]:
        raise SystemExit(1)
