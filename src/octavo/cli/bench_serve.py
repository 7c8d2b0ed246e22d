"""`octavo bench serve`, `bench compare` and `bench client`: load on any OpenAI-compatible server, and what to think of
the client that makes it. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from octavo.cli.options import FiniteRange
from octavo.config import ConfigError

_POSITIVE = FiniteRange(0, 1e9, min_open=True)
_TOKENS = click.IntRange(1, 1 << 20)
_JSON = click.option(
    "--json", "json_path", type=click.Path(dir_okay=False), default=None, help="Write the result here."
)

_OPTIONS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("--shape", click.Choice(["closed", "poisson", "trace"]), {"default": "closed", "show_default": True}),
    ("--users", click.IntRange(1, 100_000), {"help": "Closed loop: how many at once  [default: 8]"}),
    ("--rate", _POSITIVE, {"help": "Requests a second, of Poisson arrivals or of a trace on average."}),
    ("--trace", click.Path(dir_okay=False), {"help": "Azure's CSV or Mooncake's JSONL."}),
    ("--length-factor", FiniteRange(1, 1e6), {"help": "Lengths of the trace are divided by it  [default: 1]"}),
    ("--speed", _POSITIVE, {"help": "Times of the trace are divided by it  [default: 1]"}),
    ("--token-rate", _POSITIVE, {"help": "Times scaled to so many prompt and output tokens a second."}),
    ("--max-context", _TOKENS, {"help": "Longer requests of the trace are left out."}),
    ("--requests", click.IntRange(1), {"help": "At most so many, in each repeat."}),
    ("--seconds", _POSITIVE, {"help": "Send for so long, in each repeat."}),
    ("--prompt-tokens", _TOKENS, {"help": "Closed and Poisson  [default: 128]"}),
    ("--output-tokens", _TOKENS, {"help": "Closed and Poisson  [default: 64]"}),
    ("--lengths", click.Choice(["constant", "exponential"]), {"help": "Of both  [default: constant]"}),
    ("--shared-tokens", click.IntRange(0, 1 << 20), {"help": "First tokens that all prompts share  [default: 0]"}),
    ("--api", click.Choice(["completions", "chat"]), {"default": "completions", "show_default": True}),
    ("--model", str, {"help": "[default: the first that the server lists]"}),
    ("--prompts", click.Choice(["auto", "ids", "text"]), {"default": "auto", "show_default": True}),
    ("--vocab", click.IntRange(2), {"help": "Token ids are below this  [default: found by asking]"}),
    ("--temperature", FiniteRange(0, 2), {"default": 0.0, "show_default": True}),
    ("--extra", str, {"help": "A JSON object with more fields of every body."}),
    ("--slo-ttft-ms", _POSITIVE, {"help": "Service level for goodput; all that are given must be met."}),
    ("--slo-tpot-ms", _POSITIVE, {}),
    ("--slo-itl-ms", _POSITIVE, {"help": "Of every gap in an answer."}),
    ("--slo-e2e-ms", _POSITIVE, {}),
    ("--deadline-s", _POSITIVE, {"help": "Count answers that are not complete by then."}),
    ("--timeout-s", _POSITIVE, {"default": 600.0, "show_default": True, "help": "Give a request up after this long."}),
    ("--warm-up", click.IntRange(0, 100_000), {"default": 4, "show_default": True, "help": "Requests before it."}),
    ("--repeats", click.IntRange(1, 1000), {"default": 3, "show_default": True}),
    ("--server-pid", click.IntRange(1), {"help": "Watch the CPU of this process and its children."}),
    ("--api-key", str, {"envvar": "OCTAVO_BENCH_API_KEY", "show_envvar": True}),
    ("--ca-file", click.Path(exists=True, dir_okay=False), {"help": "Certificates to trust, for https."}),
    ("--seed", click.IntRange(0, 2**31), {"help": "Of the work  [drawn anew]"}),
    ("--json", click.Path(dir_okay=False), {"help": "Write the result here."}),
)


def _flags(function: Callable[..., None]) -> Callable[..., None]:
    for name, kind, more in reversed(_OPTIONS):
        function = click.option(name, type=kind, **{"default": None, **more})(function)
    return function


@click.command()
@click.argument("url")
@_flags
@click.option("--reuse/--no-reuse", default=True, show_default=True, help="Connections serve more than one request.")
@click.option("--check-certificate/--no-check-certificate", default=True, show_default=True)
def serve(url: str, **options: Any) -> None:
    """Load a server: any that speaks OpenAI's API. URL is http://host:port, with or without /v1.

    Three shapes: a closed loop of users, Poisson arrivals, or a trace. It ends with status 1 where the client was not
    up to the load, for then the figures are no result.
    """
    from octavo.bench.serve.plan import make_plan
    from octavo.bench.serve.run import measure_server
    from octavo.bench.serve.target import parse_target
    from octavo.cli.bench import bench_progress, draw_seed, show

    options["extra"] = _extra(options["extra"])
    options["seed"] = draw_seed(options["seed"])
    plan = make_plan(options)
    try:
        target = parse_target(url, options["api_key"], options["ca_file"], options["check_certificate"])
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _check_pid(options["server_pid"])
    check_folder("--json", options["json"])
    report = measure_server(target, plan, options["server_pid"], bench_progress())
    show(report.text(), report.as_json(), options["json"])
    if report.faults:
        raise SystemExit(1)


def _extra(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"--extra {text!r} is no JSON object; '{{\"top_p\": 0.9}}' would work")
    return found


def _check_pid(pid: int | None) -> None:
    import psutil

    if pid is not None and not psutil.pid_exists(pid):
        raise ConfigError(
            f"--server-pid {pid}: there is no such process on this machine; leave it out for a remote server"
        )


def check_folder(flag: str, path: str | None) -> None:
    """Before the run, which may be long."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        name = f"result{Path(path).suffix or '.json'}"
        raise ConfigError(f"{flag} {path}: there is no such folder; {flag} {name} would work")


@click.command()
@click.argument("a", type=click.Path(dir_okay=False))
@click.argument("b", type=click.Path(dir_okay=False))
@_JSON
def compare(a: str, b: str, json_path: str | None) -> None:
    """Two files of `bench serve --json`, B against A."""
    from octavo.bench.serve import report
    from octavo.cli.bench import show

    check_folder("--json", json_path)
    found = report.compare(report.read_result(a), report.read_result(b))
    show(found.text(), found.as_json(), json_path)


@click.command()
@click.option("--streams", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--rate", type=_POSITIVE, default=5000.0, show_default=True, help="Events a second on each stream.")
@click.option("--seconds", type=_POSITIVE, default=2.0, show_default=True)
@click.option("--repeats", type=click.IntRange(1, 1000), default=3, show_default=True)
@_JSON
def client(streams: int, rate: float, seconds: float, repeats: int, json_path: str | None) -> None:
    """Is the client of `bench serve` good enough on this machine? Checks it against a server that logs its sends.

    It ends with status 1 unless the client is good enough.
    """
    from octavo.bench.serve.self_check import judge_client
    from octavo.cli.bench import bench_progress, show

    check_folder("--json", json_path)
    found = judge_client(streams, rate, seconds, repeats, bench_progress())
    show(found.text(), found.as_json(), json_path)
    if not found.good:
        raise SystemExit(1)
