"""What a request says of tools: its fields, their types and bounds, and the choice that they come to.

`parse` checks all that needs neither model nor template. The schemas of arguments are compiled where answers are held
to them (grammar.py); here they are objects of bounded size whose type is "object".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.config import ServerConfig
from octavo.server.errors import ApiError

NAME_PATTERN = "^[a-zA-Z0-9_-]{1,64}$"
ToolName = Annotated[str, Meta(pattern=NAME_PATTERN)]


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments; None: there are none."""
    strict: bool | None = None
    """True: the arguments always follow the schema. False: never more than an object."""


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One element of `tools`."""

    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: ToolName


class ChosenTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A `tool_choice` that names one."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["auto", "none", "required"] | ChosenTool


class CalledFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] | None = None


class MessageCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call that an assistant's message made."""

    function: CalledFunction
    id: Annotated[str, Meta(max_length=256)] | None = None
    type: Literal["function"] | None = None
    index: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As templates see it."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        known = {} if self.id is None else {"id": self.id}
        return {**known, "type": "function", "function": function}


@dataclass(frozen=True)
class ToolPlan:
    """The tools of one request that the model is told of, and what it may do with them."""

    tools: tuple[FunctionDefinition, ...] = ()
    required: bool = False
    """The answer is calls, and nothing else."""
    parallel: bool = True
    """Several calls may be made."""
    named: bool = False
    """There is one tool alone, for the request names it."""

    def __bool__(self) -> bool:
        return bool(self.tools)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    @property
    def strict(self) -> bool:
        """The arguments of some tool always follow its schema."""
        return any(tool.strict for tool in self.tools)

    def described(self) -> list[dict[str, Any]]:
        """The definitions as templates see them; `strict` is between client and server."""
        return [{"type": "function", "function": _described(tool)} for tool in self.tools]

    def characters(self) -> int:
        """Of the definitions: at least so many are in the prompt."""
        return len(json.dumps(self.described(), ensure_ascii=False)) if self.tools else 0


def _described(tool: FunctionDefinition) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        described["description"] = tool.description
    described["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return described


NO_TOOLS = ToolPlan()


def plan(
    tools: Sequence[ToolDefinition] | None,
    choice: ToolChoice | None,
    parallel: bool | None,
    config: ServerConfig,
) -> ToolPlan:
    """What the fields come to. With tool_choice "none" the model is not told of the tools at all."""
    functions = tuple(tool.function for tool in tools or ())
    _check(functions, config)
    chosen = choice.function.name if isinstance(choice, ChosenTool) else None
    if not functions:
        if choice == "required" or chosen is not None:
            raise ApiError("tool_choice asks for a call, and tools has none; send the tools.", param="tool_choice")
        return NO_TOOLS
    if choice == "none":
        return NO_TOOLS
    if config.tool_parser == "none":
        raise ApiError(
            "Tools are refused: this server was started with --tool-parser none.",
            param="tools",
            code="unsupported_parameter",
        )
    if chosen is None:
        return ToolPlan(functions, required=choice == "required", parallel=parallel is not False)
    named = tuple(function for function in functions if function.name == chosen)
    if not named:
        raise ApiError(f"tool_choice names {chosen!r}, which is not in tools.", param="tool_choice")
    return ToolPlan(named, required=True, parallel=False, named=True)


def _check(functions: Sequence[FunctionDefinition], config: ServerConfig) -> None:
    if len(functions) > config.max_tools:
        raise ApiError(f"tools may hold {config.max_tools} at most.", param="tools")
    seen: set[str] = set()
    for index, function in enumerate(functions):
        where = f"tools[{index}].function"
        if function.name in seen:
            raise ApiError(f"tools has {function.name!r} twice; each needs a name of its own.", param=f"{where}.name")
        seen.add(function.name)
        kind = (function.parameters or {}).get("type", "object")
        if kind != "object":
            raise ApiError(
                'The parameters of a tool are an object; a schema of "type": "object" would work.',
                param=f"{where}.parameters",
            )
