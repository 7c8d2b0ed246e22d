"""Command-line flags that make a ServerConfig, shared by serve and doctor: one a field, made from its metadata.

Owns nothing; the table is octavo/http_config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any, TypeVar

import click

from octavo.cli.options import FiniteRange, Size
from octavo.config import check_server
from octavo.http_config import GROUPS, ServerConfig, Setting

F = TypeVar("F", bound=Callable[..., Any])


class BoundedSize(Size):
    """A size between two others."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        size = super().convert(value, param, ctx)
        if not self._low <= size <= self._high:
            near = min(max(size, self._low), self._high)
            self.fail(f"{value!r} is outside {self._low} to {self._high} bytes; {near} would work", param, ctx)
        return size


def setting(field: Field[Any]) -> Setting:
    """What the table says of a field."""
    found: Setting = field.metadata["setting"]
    return found


def server_options(command: F) -> F:
    """Adds the server's flags; the command gets them as one `server: ServerConfig`."""

    def wrapper(*args: Any, **values: Any) -> Any:
        own = {name: values.pop(name) for name in list(values) if name not in _NAMES}
        return command(*args, server=make_server_config(values), **own)

    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    wrapper.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    wrapped: Any = wrapper
    for field in reversed(fields(ServerConfig)):
        wrapped = _option(field)(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _option(field: Field[Any]) -> Callable[[F], F]:
    known = setting(field)
    flag = f"--{field.name.replace('_', '-')}"
    default = field.default
    if known.kind == "switch":
        return click.option(f"{flag}/--no-{flag[2:]}", default=default, show_default=True, help=known.help)
    if known.kind == "names":
        return click.option(flag, multiple=True, metavar="NAME", help=known.help)
    kind: Any = str
    if known.kind == "file":
        kind = click.Path(exists=True, dir_okay=False, readable=True)
    elif known.kind == "choice":
        kind = click.Choice(known.choices)
    elif known.kind == "bytes":
        kind = BoundedSize(int(known.low), int(known.high))
    elif known.kind == "number":
        kind = (FiniteRange if isinstance(default, float) else click.IntRange)(known.low, known.high)  # type: ignore[arg-type]
    return click.option(flag, type=kind, default=default, show_default=default is not None, help=known.help)


def make_server_config(values: dict[str, Any]) -> ServerConfig:
    """The configuration that the flags ask for; refuses combinations that cannot be."""
    config = ServerConfig(**values)
    check_server(config)
    return config


def lines(config: ServerConfig) -> list[str]:
    """Every setting of the server, by group, for a person."""
    said: list[str] = []
    for group, title in GROUPS.items():
        said.append(title)
        for field in fields(ServerConfig):
            if setting(field).group == group:
                said.append(f"  {field.name:<20} {_shown(getattr(config, field.name)):<12} {setting(field).help}")
    return said


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "off"
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value)


_NAMES = frozenset(field.name for field in fields(ServerConfig))
