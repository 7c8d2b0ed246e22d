"""From checked fields to `SamplingParams`: what depends on the model and the configuration is checked here.

Defaults: what the model suggests (models/generation.py), else temperature and top_p 1, top_k, min_p and penalties
off; max_tokens is the rest of the context for a chat and 16 for a completion, and is cut to what the context holds.
top_p 0 is the narrowest nucleus, one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from octavo.config import ServerConfig
from octavo.server.errors import ApiError
from octavo.server.prompt_told import Telling
from octavo.server.protocol import ChatBody, CommonFields, CompletionBody
from octavo.types import SamplingDefaults, SamplingParams

Number = TypeVar("Number", int, float)

NARROWEST_TOP_P = 1e-9
COMPLETION_MAX_TOKENS = 16
_NO_DEFAULTS = SamplingDefaults()


@dataclass(frozen=True)
class ModelLimits:
    """What a request is checked against."""

    num_tokens: int
    """Ids that the tokeniser knows."""
    max_model_len: int
    """Longest prompt + output."""
    sampling: SamplingDefaults = _NO_DEFAULTS
    """For fields that a request leaves out."""


@dataclass(frozen=True)
class TextOptions:
    """How tokens become the answer's text; the engine does not know of it."""

    stops: tuple[str, ...]
    include_stop: bool
    skip_special: bool
    min_tokens: int
    logprobs: int | None


def check_choices(body: CommonFields, config: ServerConfig, prompts: int = 1) -> int:
    """Choices a prompt."""
    n = body.n if body.n is not None else 1
    if n > config.max_n:
        raise ApiError(f"n may be {config.max_n} at most.", param="n")
    best_of = generated_choices(body)
    if best_of > config.max_n:
        raise ApiError(f"best_of may be {config.max_n} at most.", param="best_of")
    if best_of < n:
        raise ApiError(f"best_of is {best_of}, below the {n} choices asked for; {n} would work.", param="best_of")
    if best_of > n and body.stream:
        raise ApiError(
            "best_of above n cannot be streamed: which choices are best is known at their end.", param="best_of"
        )
    n = best_of
    if n * prompts > config.max_choices:
        raise ApiError(
            f"n times the prompts is {n * prompts}, and one request may ask for {config.max_choices} choices.",
            param="n",
        )
    return n


def generated_choices(body: CommonFields) -> int:
    """Choices generated a prompt; some may be left out of the answer."""
    best_of = body.best_of if isinstance(body, CompletionBody) else None
    return (body.n or 1) if best_of is None else best_of


def check_tokens(prompts: list[list[int]], samplings: list[SamplingParams], n: int, config: ServerConfig) -> None:
    """All that one request may make the engine compute, and the server keep."""
    computed = n * sum(len(prompt) for prompt in prompts)
    entries = 0
    for prompt, sampling in zip(prompts, samplings, strict=True):
        computed += n * sampling.max_tokens
        entries += 0 if sampling.logprobs is None else n * sampling.max_tokens * (1 + sampling.logprobs)
        entries += 0 if sampling.prompt_logprobs is None else n * len(prompt) * (1 + sampling.prompt_logprobs)
    if computed > config.max_request_tokens:
        raise ApiError(
            f"Prompts and max_tokens over all choices come to {computed} tokens, and one request may have "
            f"{config.max_request_tokens}; lower max_tokens or n.",
            param="max_tokens",
        )
    if entries > config.max_logprob_entries:
        raise ApiError(
            f"Prompts and max_tokens over all choices with their logprobs come to {entries} log-probabilities, and one "
            f"answer may have {config.max_logprob_entries}; lower max_tokens, n, logprobs or prompt_logprobs.",
            param="max_tokens",
        )


def chat_logprobs(body: ChatBody, config: ServerConfig) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs true.", param="top_logprobs")
    if not body.logprobs:
        return None
    return _bounded_logprobs(body.top_logprobs or 0, "top_logprobs", config)


def completion_logprobs(body: CompletionBody, config: ServerConfig) -> int | None:
    return None if body.logprobs is None else _bounded_logprobs(body.logprobs, "logprobs", config)


def prompt_telling(body: ChatBody | CompletionBody, logprobs: int | None, config: ServerConfig) -> Telling:
    """What the answer tells of its prompt."""
    shown = body.prompt_logprobs
    if shown is not None:
        _bounded_logprobs(shown, "prompt_logprobs", config)
    echo = isinstance(body, CompletionBody) and bool(body.echo)
    telling = Telling(logprobs if echo else None, shown)
    if max_tokens_of(body) == 0 and telling.wanted is None:
        raise ApiError(
            "max_tokens 0 has an answer only with prompt_logprobs, or with echo and logprobs; 1 or more would work.",
            param="max_tokens",
        )
    return telling


def _bounded_logprobs(count: int, param: str, config: ServerConfig) -> int:
    if count > config.max_logprobs:
        raise ApiError(f"{param} may be {config.max_logprobs} at most.", param=param)
    return count


def text_options(body: CommonFields, logprobs: int | None, config: ServerConfig) -> TextOptions:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > config.max_stop_strings:
        raise ApiError(f"stop may hold {config.max_stop_strings} strings at most.", param="stop")
    for stop in stops:
        if not stop:
            raise ApiError("stop may not hold an empty string, which is found everywhere; leave it out.", param="stop")
        if len(stop) > config.max_stop_characters:
            raise ApiError(f"A stop string may have {config.max_stop_characters} characters at most.", param="stop")
    return TextOptions(
        stops=stops,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        min_tokens=body.min_tokens or 0,
        logprobs=logprobs,
    )


def max_tokens_of(body: ChatBody | CompletionBody) -> int | None:
    """The user's ceiling: the lower one where a chat names both; None where none is named."""
    given = [body.max_tokens, body.max_completion_tokens] if isinstance(body, ChatBody) else [body.max_tokens]
    named = [count for count in given if count is not None]
    if named:
        return min(named)
    return None if isinstance(body, ChatBody) else COMPLETION_MAX_TOKENS


def refuse_length(prompt_tokens: int, limits: ModelLimits, param: str) -> NoReturn:
    """Raises for a prompt that leaves no room for an answer."""
    raise ApiError(
        f"The prompt has {prompt_tokens} tokens, and prompt and answer together may have {limits.max_model_len}; "
        "shorten the prompt, or start the server with a larger context or KV pool.",
        param=param,
        code="context_length_exceeded",
    )


def bad_words(
    body: CommonFields, spellings: Callable[[str], Sequence[tuple[int, ...]]], config: ServerConfig
) -> tuple[tuple[int, ...], ...]:
    """The sequences of ids that the output may not hold. spellings: the ways in which tokens write a word."""
    words = body.bad_words or []
    if len(words) > config.max_bad_words:
        raise ApiError(f"bad_words may hold {config.max_bad_words} strings at most.", param="bad_words")
    return tuple(dict.fromkeys(sequence for word in words for sequence in spellings(word)))


def sampling_params(
    body: ChatBody | CompletionBody,
    prompt_tokens: int,
    logprobs: int | None,
    limits: ModelLimits,
    config: ServerConfig,
    words: tuple[tuple[int, ...], ...] = (),
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Parameters for a prompt of this length. words: of `bad_words`."""
    room = limits.max_model_len - prompt_tokens
    asked = max_tokens_of(body)
    if room < (asked != 0):
        refuse_length(prompt_tokens, limits, "messages" if isinstance(body, ChatBody) else "prompt")
    max_tokens = room if asked is None else min(asked, room)
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise ApiError(
            f"min_tokens is {min_tokens}, above the {max_tokens} tokens possible; {max_tokens} or fewer would work.",
            param="min_tokens",
        )
    defaults = limits.sampling
    top_k = _first(body.top_k, defaults.top_k, 0)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_first(body.temperature, defaults.temperature, 1.0),
        top_k=0 if top_k < 0 or top_k >= limits.num_tokens else top_k,
        top_p=max(_first(body.top_p, defaults.top_p, 1.0), NARROWEST_TOP_P),
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}, limits, config),
        bad_words=words,
        allowed_token_ids=_allowed_token_ids(body.allowed_token_ids, limits, config),
        stop_token_ids=_ids(body.stop_token_ids or [], "stop_token_ids", config.max_stop_token_ids, limits),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _first(asked: Number | None, suggested: Number | None, usual: Number) -> Number:
    if asked is not None:
        return asked
    return usual if suggested is None else suggested


def _logit_bias(given: dict[str, float], limits: ModelLimits, config: ServerConfig) -> tuple[tuple[int, float], ...]:
    if len(given) > config.max_logit_bias:
        raise ApiError(f"logit_bias may hold {config.max_logit_bias} entries at most.", param="logit_bias")
    bias: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < limits.num_tokens):
            raise ApiError(
                f"A key of logit_bias must be a token id from 0 to {limits.num_tokens - 1}.", param="logit_bias"
            )
        if int(key) in bias:
            raise ApiError(f"logit_bias names the token {int(key)} twice.", param="logit_bias")
        bias[int(key)] = value
    return tuple(sorted(bias.items()))


def _allowed_token_ids(given: list[int] | None, limits: ModelLimits, config: ServerConfig) -> tuple[int, ...] | None:
    return None if given is None else _ids(given, "allowed_token_ids", config.max_allowed_token_ids, limits)


def _ids(given: list[int], field: str, most: int, limits: ModelLimits) -> tuple[int, ...]:
    if len(given) > most:
        raise ApiError(f"{field} may hold {most} ids at most.", param=field)
    if any(token >= limits.num_tokens for token in given):
        raise ApiError(f"An id in {field} must be from 0 to {limits.num_tokens - 1}.", param=field)
    return tuple(dict.fromkeys(given))
