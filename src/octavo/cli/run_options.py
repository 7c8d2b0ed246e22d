"""The flags of `octavo run` besides the engine's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from octavo.cli.options import FiniteRange

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RunOptions:
    """What the flags say; None: not given."""

    prompt: str | None
    output: str | None
    as_chat: bool | None
    temperature: float | None
    max_tokens: int | None
    seed: int
    output_order: str
    window: int | None
    strict: bool
    overwrite: bool


_OPTIONS = [
    click.option("--output", "-o", default=None, metavar="OUTPUT", help="A JSON line for each line; - is stdout."),
    click.option("--prompt", "-p", default=None, help="One text to answer, instead of INPUT."),
    click.option(
        "--chat/--no-chat",
        "as_chat",
        default=None,
        help="Text prompts are a user's message, or are continued  [default: --prompt chats, lines do not]",
    ),
    click.option(
        "--temperature",
        type=FiniteRange(0, 2),
        default=None,
        help="Where a line names none  [default: the model's, else 1; with --prompt 0, which is none]",
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(1),
        default=None,
        help="Where a line names none  [default: 16, chats the rest of the context; with --prompt 256]",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        default=0,
        show_default=True,
        help="A line without a seed draws by this one and its number.",
    ),
    click.option(
        "--order",
        "output_order",
        type=click.Choice(["input", "finish"]),
        default="input",
        show_default=True,
        help="Answers stand as their lines do, or as they finish.",
    ),
    click.option(
        "--window",
        type=click.IntRange(1, 1 << 20),
        default=None,
        help="Lines in work at once  [default: twice --max-num-seqs]",
    ),
    click.option("--strict", is_flag=True, help="Stop at the first line that has no answer."),
    click.option("--overwrite", is_flag=True, help="Begin anew, whatever OUTPUT holds."),
]


def run_options(command: F) -> F:
    """Adds them; the command gets the fields of `RunOptions`."""
    wrapped: Any = command
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]
