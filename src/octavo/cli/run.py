"""`octavo run`: every line of a file, or one prompt.

Both name the model first where they name one. What belongs to the other of the two is refused, not ignored.
"""

from __future__ import annotations

from dataclasses import replace

import click

from octavo.cli.run_options import RunOptions
from octavo.config import ConfigError, EngineConfig

_WORKS = "octavo run [MODEL] INPUT.jsonl -o OUTPUT.jsonl would work, or octavo run [MODEL] -p TEXT"
_PROMPT_MAX_TOKENS = 256


def run(names: tuple[str, ...], engine: EngineConfig, options: RunOptions) -> int:
    """The exit status. Raises ConfigError."""
    if any(not name.strip() for name in names):
        raise ConfigError(f"MODEL or INPUT is empty; {_WORKS}")
    if options.prompt is not None:
        return _one(names, engine, options, options.prompt)
    return _lines(names, engine, options)


def _named(engine: EngineConfig, model: str) -> EngineConfig:
    return replace(engine, model=replace(engine.model, path=model))


def _lines(names: tuple[str, ...], engine: EngineConfig, options: RunOptions) -> int:
    from octavo.batch.lines import Defaults
    from octavo.batch.run import BatchOptions, run_batch

    if not names or len(names) > 2:
        raise ConfigError(f"octavo run needs INPUT, a file with a prompt a line, or --prompt; {_WORKS}")
    if options.output is None:
        raise ConfigError(f"octavo run INPUT needs -o OUTPUT, which may be - for standard output; {_WORKS}")
    if len(names) == 2:
        engine = _named(engine, names[0])
    return run_batch(
        engine,
        BatchOptions(
            input=names[-1],
            output=options.output,
            defaults=Defaults(options.seed, options.max_tokens, options.temperature, bool(options.as_chat)),
            order=options.output_order,
            window=options.window,
            strict=options.strict,
            overwrite=options.overwrite,
        ),
    )


def _one(names: tuple[str, ...], engine: EngineConfig, options: RunOptions, prompt: str) -> int:
    from octavo.llm import LLM, REFUSALS
    from octavo.models.locate import locate_model

    given = [
        flag
        for flag, is_given in (
            ("INPUT", len(names) > 1),
            ("--output", options.output is not None),
            ("--order", options.output_order != "input"),
            ("--window", options.window is not None),
            ("--strict", options.strict),
            ("--overwrite", options.overwrite),
        )
        if is_given
    ]
    if given:
        raise ConfigError(f"{given[0]} does not go with --prompt, which answers one text on standard output; {_WORKS}")
    if names:
        engine = _named(engine, names[0])
    with LLM(config=replace(engine, model=locate_model(engine.model))) as llm:
        temperature = options.temperature
        if temperature is None and llm.info.sampling.temperature is None:
            temperature = 0.0
        sampling = {
            "temperature": temperature,
            "max_tokens": options.max_tokens or _PROMPT_MAX_TOKENS,
            "seed": options.seed,
        }
        try:
            if options.as_chat is False:
                result = llm.generate(prompt, **sampling)
            else:
                result = llm.chat([{"role": "user", "content": prompt}], **sampling)
        except REFUSALS as error:
            raise ConfigError(f"--prompt cannot be answered: {error}") from error
        click.echo(result.text)
    return 0
