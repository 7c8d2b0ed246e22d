"""The bodies of /v1/chat/completions and /v1/completions: fields, types and bounds.

`parse_chat` and `parse_completion` check everything that needs neither model nor configuration. A field is one of:
used (typed and bounded here), inert (sent by SDKs, changes nothing: `INERT_FIELDS`), refused by name where its value
asks for something (`REFUSED_FIELDS`), or unknown, which is refused by name too. null means absent.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from octavo.config import ServerConfig
from octavo.server import limits
from octavo.server.body import parse_object
from octavo.server.errors import ApiError, clip
from octavo.server.tools.definitions import MessageCall, ToolChoice, ToolDefinition

INERT_FIELDS = (
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
"""Accepted and without effect: accounting and storage at the vendor."""

REFUSED_FIELDS = {
    "audio": "audio is not built",
    "function_call": "the older form of tools; tool_choice would work",
    "functions": "the older form of tools; tools would work",
    "modalities": 'only ["text"] is possible',
    "prediction": "predicted outputs are not built",
    "reasoning_effort": "the model does not reason",
    "response_format": 'only {"type": "text"} is possible',
    "suffix": "insertion is not built",
    "verbosity": "the model has no such control",
    "web_search_options": "web search is not built",
}
"""Field -> why it is refused, unless its value asks for nothing (`_ASKS_NOTHING`)."""

_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
}

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenCount = Annotated[int, limits.MAX_TOKENS.meta()]
TokenId = Annotated[int, limits.TOKEN_ID.meta()]
Penalty = Annotated[float, limits.PENALTY.meta()]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CommonFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of both bodies."""

    model: Annotated[str, Meta(max_length=512)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenCount | None = None
    min_tokens: Annotated[int, limits.MIN_TOKENS.meta()] | None = None
    temperature: Annotated[float, limits.TEMPERATURE.meta()] | None = None
    top_p: Annotated[float, limits.TOP_P.meta()] | None = None
    top_k: Annotated[int, limits.TOP_K.meta()] | None = None
    min_p: Annotated[float, limits.MIN_P.meta()] | None = None
    seed: Int64 | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    truncate_prompt_tokens: Annotated[int, limits.TRUNCATION.meta()] | None = None
    prompt_logprobs: Annotated[int, limits.LOGPROBS.meta()] | None = None
    logit_bias: dict[str, Annotated[float, limits.BIAS.meta()]] | None = None
    bad_words: list[Annotated[str, Meta(min_length=1, max_length=limits.MAX_BAD_WORD_CHARACTERS)]] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, limits.REPETITION.meta()] | None = None
    cache_salt: Annotated[str, Meta(max_length=limits.MAX_SALT_CHARACTERS)] | None = None
    priority: Annotated[int, limits.PRIORITY.meta()] | None = None
    deadline_ms: Annotated[int, limits.DEADLINE_MS.meta()] | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None


ContentPart = Annotated[
    dict[str, Any],
    Meta(
        extra_json_schema={
            "required": ["type", "text"],
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "additionalProperties": False,
        }
    ),
]
"""{"type": "text", "text": ...}; prompts.py says what is wrong with others."""


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. `content` in parts is joined without a separator."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ChatBody(CommonFields, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: TokenCount | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Annotated[str, Meta(min_length=1, max_length=limits.MAX_TEMPLATE_CHARACTERS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, limits.LOGPROBS.meta()] | None = None
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    verbosity: Any = None
    web_search_options: Any = None


Prompts = Annotated[
    Any,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                },
            ]
        }
    ),
]
"""A text or token ids, or a list of either; prompts.py says what is wrong with others."""


class CompletionBody(CommonFields, kw_only=True, forbid_unknown_fields=True):
    prompt: Prompts
    logprobs: Annotated[int, limits.LOGPROBS.meta()] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    echo: bool | None = None
    suffix: Any = None


Body = TypeVar("Body", ChatBody, CompletionBody)

_BOUNDS = ServerConfig()
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def parse_chat(body: bytes, bounds: ServerConfig = _BOUNDS) -> ChatBody:
    return check_chat(parse_object(body, bounds))


def parse_completion(body: bytes, bounds: ServerConfig = _BOUNDS) -> CompletionBody:
    return check_completion(parse_object(body, bounds))


def check_completion(value: dict[str, Any]) -> CompletionBody:
    """The fields of a completion that was parsed already, or never was JSON."""
    return _convert(value, CompletionBody)


def check_chat(value: dict[str, Any]) -> ChatBody:
    """The fields of a chat that was parsed already, or never was JSON."""
    return _convert(value, ChatBody)


def _convert(value: dict[str, Any], kind: type[Body]) -> Body:
    try:
        fields = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise explain(str(error)) from error
    for name, reason in REFUSED_FIELDS.items():
        given = value.get(name)
        if given is not None and not any(
            type(given) is type(nothing) and given == nothing for nothing in _ASKS_NOTHING.get(name, ())
        ):
            raise ApiError(f"The field {name!r} is refused: {reason}.", param=name, code="unsupported_parameter")
    return fields


def explain(message: str) -> ApiError:
    """A conversion error as one sentence that names the field."""
    path = _PATH.search(message)
    field = path.group(1) if path is not None else ""
    problem = message[: path.start()] if path is not None else message
    if unknown := _UNKNOWN.match(problem):
        name = clip(unknown.group(1), 60)
        where = f" in {field!r}" if field else ""
        return ApiError(
            f"Unknown field {name!r}{where}; remove it.",
            param=f"{field}.{name}" if field else name,
            code="unknown_field",
        )
    if missing := _MISSING.match(problem):
        name = f"{field}.{missing.group(1)}" if field else missing.group(1)
        return ApiError(f"The field {name!r} is missing.", param=name)
    if problem.startswith("Invalid enum value") and field.endswith("role"):
        problem = f"must be one of {', '.join(ROLES)}"
    problem = problem.replace("`", "").replace(" | null", "").removesuffix(".")
    problem = problem[:1].lower() + problem[1:]
    return ApiError(f"The field {clip(field, 60)!r}: {clip(problem, 200)}.", param=field or None)
