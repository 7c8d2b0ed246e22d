"""Entry point of the octavo command. Each subcommand is imported when it runs, so that `--help` is instant."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

import octavo
from octavo.cli.bench import bench
from octavo.cli.options import FiniteRange, engine_flags, engine_options
from octavo.cli.run_options import RunOptions, run_options
from octavo.cli.server_options import server_options
from octavo.config import ConfigError, EngineConfig, ServerConfig
from octavo.models.files import sentence
from octavo.models.spec import ModelError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(octavo.__version__, prog_name="octavo")
def cli() -> None:
    """Octavo serves language models."""


cli.add_command(bench)


@cli.command()
@engine_options
@server_options
def serve(engine: EngineConfig, server: ServerConfig) -> None:
    """Serve MODEL over HTTP: a .gguf file, a directory with safetensors, or ORG/NAME of the Hugging Face Hub.

    Without MODEL it is SmolLM2-135M-Instruct. ORG/NAME@REVISION and hf:ORG/NAME:FILE.gguf work too.
    """
    from octavo.server.run import run_server

    raise SystemExit(run_server(engine, server))


@cli.command()
@engine_options
@click.option("--url", default=None, help="Talk to this server (http://host:port) instead of an engine of its own.")
@click.option("--api-key", default=None, envvar="OCTAVO_API_KEY", show_envvar=True, help="Key for --url.")
@click.option("--system", default=None, help="System message.")
@click.option(
    "--temperature",
    type=FiniteRange(0, 2),
    default=None,
    help="Randomness  [default: the model's, else 0.7; with --url the server's]",
)
@click.option("--max-tokens", type=click.IntRange(1), default=1024, show_default=True, help="Longest answer.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=None, help="Makes answers repeatable.")
def chat(
    engine: EngineConfig,
    url: str | None,
    api_key: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int,
    seed: int | None,
) -> None:
    """Chat in the terminal; answers stream. /reset starts anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer."""
    from octavo.cli.chat import ChatOptions, run_chat

    options = ChatOptions(system=system, temperature=temperature, max_tokens=max_tokens, seed=seed)
    raise SystemExit(run_chat(engine if url else with_model(engine), url, options, api_key))


@cli.command(no_args_is_help=True)
@click.argument("names", nargs=-1, metavar="[MODEL] [INPUT]")
@engine_flags
@run_options
def run(names: tuple[str, ...], engine: EngineConfig, **values: Any) -> None:
    """Answer every line of INPUT into OUTPUT (octavo run [MODEL] INPUT.jsonl -o OUTPUT.jsonl), or one prompt (-p).

    A line is {"prompt": ...} or {"messages": ...} with the API's fields and an id, a JSON string, or a line of an
    OpenAI batch file. A run that was stopped or killed goes on with the same command. docs/offline.md says more.
    """
    from octavo.cli.run import run as answer

    raise SystemExit(answer(names, engine, RunOptions(**values)))


@cli.command()
@engine_options
@server_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
@click.option("--compatibility", is_flag=True, help="Only the table of settings that work together, as Markdown.")
def doctor(engine: EngineConfig, server: ServerConfig, as_json: bool, compatibility: bool) -> None:
    """Say what this machine has, all about MODEL, what Octavo would choose, and every limit; loads no weights.

    The exit code is 1 where MODEL would not start.
    """
    from octavo.cli.doctor import report, report_json

    if compatibility:
        from octavo.compatibility import lines

        click.echo("\n".join(lines()))
        return
    if not (report_json if as_json else report)(engine, click.echo, server):
        raise SystemExit(1)


@cli.command()
@engine_options
@click.option("--quick", is_flag=True, help="Each change by itself, and all at once, instead of every combination.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=None, help="Of prompts and noise [drawn anew].")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), default=None, help="Write the result here.")
def verify(engine: EngineConfig, quick: bool, seed: int | None, json_path: str | None) -> None:
    """Check on this machine that load, cache, preemption, threads and instruction sets change no bit of an answer.

    One line a cell, with the seconds that it took, under one that says how many there are: minutes with --quick, which
    grow with the model, and about ten times as many without. The first difference names request, position and bits,
    and the exit code is then 1.
    """
    from octavo.cli.verify import run_verify

    if not run_verify(with_model(engine), quick, seed, json_path, click.echo):
        raise SystemExit(1)


@cli.command()
@click.argument("model", required=False)
def pull(model: str | None) -> None:
    """Download MODEL (ORG/NAME[@REVISION], hf:ORG/NAME:FILE.gguf; none: the default one), or renew it, and check it."""
    from octavo.cli.pull import pull as run_pull

    run_pull(named(model), click.echo, partial(click.echo, err=True))


@cli.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List what is cached: the default model, models of the Hugging Face cache, packed weights."""
    if context.invoked_subcommand is None:
        from octavo.cli.models import show

        show(click.echo, as_json)


@models.command(name="rm")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--packed", is_flag=True, help="All packed weights; they are packed again when needed.")
@click.option("--stale", is_flag=True, help="Packed weights that only another version of Octavo could read.")
@click.option(
    "--unused-for", type=FiniteRange(0, 36500), default=None, metavar="DAYS", help="Packed weights not used for DAYS."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_models(names: tuple[str, ...], packed: bool, stale: bool, unused_for: float | None, yes: bool) -> None:
    """Remove cached models by NAME, with their packed weights, or packed weights alone.

    Running engines are not disturbed.
    """
    from octavo.cli.models import Selection, remove

    def confirm(question: str) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigError("octavo models rm asks before it removes, and there is no terminal; --yes would work")
        return click.confirm(question)

    remove(Selection(tuple(map(named, names)), packed, stale, unused_for), click.echo, confirm)


@cli.group()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--key-file", type=click.Path(path_type=Path), default=None, help="File with its administrator's key.")
@click.pass_context
def cache(context: click.Context, url: str, key_file: Path | None) -> None:
    """Pin prefixes in a running server's cache, list pins, end them. The server needs --pin-tokens."""
    from octavo.cli.cache import Server

    context.obj = Server(url, key_file)


@cache.command(name="pin")
@click.argument("name")
@click.option("--text", default=None, help="Beginning of completions.")
@click.option("--system", default=None, help="System message of chats.")
@click.option("--messages", type=click.Path(path_type=Path), default=None, help="JSON file: first messages of chats.")
@click.option("--ttl", type=FiniteRange(1, 30 * 24 * 3600), default=3600.0, show_default=True, help="Seconds.")
@click.option("--salt", default=None, help="cache_salt of the requests that are to find it.")
@click.option("--tenant", default=None, help="Tenant of those requests: the name of their key.")
@click.pass_obj
def cache_pin(
    server: Any, name: str, text: str | None, system: str | None, messages: Path | None, ttl: float, **owner: str | None
) -> None:
    """Compute a prefix, if it is not cached, and keep it under NAME."""
    from octavo.cli.cache import pin, prefix_of, say_all

    say_all(
        pin(server, name, prefix_of(text, system, messages), ttl, cache_salt=owner["salt"], tenant=owner["tenant"]),
        click.echo,
    )


@cache.command(name="list")
@click.pass_obj
def cache_list(server: Any) -> None:
    """List the pins."""
    from octavo.cli.cache import pins, say_all

    say_all(pins(server), click.echo)


@cache.command(name="unpin")
@click.argument("name")
@click.pass_obj
def cache_unpin(server: Any, name: str) -> None:
    """End the pin NAME."""
    from octavo.cli.cache import say_all, unpin

    say_all(unpin(server, name), click.echo)


def named(model: str | None) -> str:
    """The name as a configuration has it; empty is the default model."""
    if model is not None and not model.strip():
        raise ConfigError("MODEL is empty; name a model, or leave it out for the default one")
    return model or ""


@cli.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(["gguf", "safetensors"]), help="Format  [default: as TARGET's name ends]")
@click.option("--type", "kind", default=None, help="Type of the matrices, such as BF16 or Q8_0  [default: as they are]")
def convert(source: str, target: Path, to: str | None, kind: str | None) -> None:
    """Write SOURCE as a GGUF file or a directory with safetensors, TARGET; nothing is overwritten.

    Tensors, configuration, tokeniser and chat template all come along; what the new format changes is told.
    """
    from octavo.cli.convert import run_convert

    run_convert(source, target, to, kind, click.echo)


def with_model(engine: EngineConfig) -> EngineConfig:
    """The model's files in place of its name, fetched here so that downloads show in the foreground."""
    from dataclasses import replace

    from octavo.models.locate import locate_model

    return replace(engine, model=locate_model(engine.model))


def main() -> None:
    """Runs the command; a user's error is one line on stderr and exit code 2."""
    try:
        cli.main(standalone_mode=True)
    except (ConfigError, ModelError) as error:
        click.echo(f"octavo: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        click.echo(f"octavo: {sentence(error)}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
