"""What callers of `LLM` pass in, checked: prompts, conversations and sampling keywords.

Everything is checked in the caller's thread, with the server's own checks (server/limits.py, params.py, protocol.py),
so that both refuse the same. A refusal is one sentence: TypeError for a value of the wrong kind, ValueError for one
that is out of bounds. Owns no state and has no off switch.
"""

from __future__ import annotations

import math
import numbers
import operator
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from octavo.config import ServerConfig
from octavo.llm_structure import Form
from octavo.server.errors import ApiError
from octavo.server.limits import (
    BIAS,
    MAX_BAD_WORD_CHARACTERS,
    MAX_SALT_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    NUMBERS,
    TOKEN_ID,
    Range,
)
from octavo.server.params import ModelLimits, TextOptions, bad_words, prompt_telling, sampling_params, text_options
from octavo.server.prompt_told import Telling
from octavo.server.prompts import chat_messages
from octavo.server.protocol import CompletionBody, check_chat
from octavo.server.text import ModelText
from octavo.types import SamplingParams

_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_LISTS = ("allowed_token_ids", "bad_words", "logit_bias", "stop", "stop_token_ids")
KEYWORDS = tuple(sorted((*NUMBERS, *_FLAGS, *_LISTS, "cache_salt")))
_CONFIG = ServerConfig()
_PROMPT = "a prompt must be text, such as 'Once upon a time', or token ids, such as [1, 2, 3]"


@dataclass(frozen=True)
class Asked:
    """A checked call: what the engine, the text side and the noise need."""

    prompt: list[int]
    params: SamplingParams
    options: TextOptions
    seed: int
    cache_salt: str
    telling: Telling
    """What the answer tells of the prompt."""
    form: Form | None = None
    """What the answer's text must be."""


class Inputs:
    """Checks calls against one model."""

    def __init__(self, text: ModelText, limits: ModelLimits) -> None:
        self._text = text
        self._limits = limits

    def prompts(self, prompts: Any) -> tuple[list[list[int]], bool]:
        """The prompts as ids, and whether there were several to begin with."""
        if isinstance(prompts, str):
            return [self.prompt(prompts)], False
        items = _items(prompts, _PROMPT + ", or a list of prompts")
        if items and isinstance(items[0], numbers.Number):
            return [self.prompt(items)], False
        return [self.prompt(item) for item in items], True

    def prompt(self, prompt: Any) -> list[int]:
        """One prompt as ids."""
        if isinstance(prompt, str):
            _check_plain(prompt, "the prompt")
            ids = self._text.prompt(prompt)
        else:
            ids = [self._id(item, "a prompt's token id") for item in _items(prompt, _PROMPT)]
        if not ids:
            raise ValueError("the prompt is empty; give at least one token, such as 'Hello'")
        return ids

    def chat(self, messages: Any) -> list[int]:
        """A conversation as ids."""
        example = "[{'role': 'user', 'content': 'hi'}]"
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
            raise TypeError(f"messages is a {type(messages).__name__}; a list such as {example} would work")
        turns = []
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise TypeError(f"messages[{index}] is a {type(message).__name__}; {example[1:-1]} would work")
            if wrong := [key for key in message if not isinstance(key, str)]:
                raise TypeError(f"messages[{index}] has the key {_shown(wrong[0])}; 'role' and 'content' would work")
            _check_plain(message, f"messages[{index}]")
            turns.append(dict(message))
        if not turns:
            raise ValueError(f"messages is empty; {example} would work")
        with _refusals():
            return self._text.chat(chat_messages(check_chat({"messages": turns}), _CONFIG))

    def ask(self, prompt: list[int], sampling: Mapping[str, Any], form: Form | None = None) -> Asked:
        """The call's parameters. None is the default; max_tokens None is the rest of the context."""
        room = self._limits.max_model_len - (sampling.get("max_tokens") != 0)
        if len(prompt) > room:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, and prompt and answer together may have "
                f"{self._limits.max_model_len}; {room} or fewer would work"
            )
        values = {name: value for name, value in sampling.items() if value is not None}
        if unknown := sorted(set(sampling) - set(KEYWORDS)):
            raise TypeError(f"unknown sampling parameter {unknown[0]!r}; known are {', '.join(KEYWORDS)}")
        fields = {name: self._value(name, value) for name, value in values.items()}
        seed = fields.pop("seed", None)
        fields.setdefault("max_tokens", self._limits.max_model_len)
        with _refusals():
            body = CompletionBody(prompt=prompt, **fields)
            if body.logprobs is not None and body.logprobs > _CONFIG.max_logprobs:
                raise ApiError(f"logprobs is {body.logprobs}; 0 to {_CONFIG.max_logprobs} would work.")
            telling = prompt_telling(body, body.logprobs, _CONFIG)
            words = bad_words(body, self._text.spellings, _CONFIG)
            params = sampling_params(body, len(prompt), body.logprobs, self._limits, _CONFIG, words, telling.wanted)
            options = text_options(body, body.logprobs, _CONFIG)
        seed = secrets.randbits(64) if seed is None else seed
        if form is not None:
            params = structs.replace(params, structure=form.structure)
        return Asked(prompt, params, options, seed, body.cache_salt or "", telling, form)

    def _value(self, name: str, value: Any) -> Any:
        """A keyword's value as the API's body has it."""
        if name in NUMBERS:
            return number(name, value, NUMBERS[name])
        if name in _FLAGS:
            return _flag(name, value)
        if name == "stop":
            return _stop(value)
        if name == "bad_words":
            return _bad_words(value)
        if name == "allowed_token_ids":
            return self._allowed(value)
        if name == "cache_salt":
            return _salt(value)
        return self._bias(value) if name == "logit_bias" else self._stop_ids(value)

    def _bias(self, value: Any) -> dict[str, float]:
        if not isinstance(value, Mapping):
            raise TypeError(f"logit_bias is a {type(value).__name__}; a dict of token ids, such as {{7: -100}}, works")
        return {
            str(self._id(token, "a key of logit_bias")): number("a value of logit_bias", bias, BIAS)
            for token, bias in value.items()
        }

    def _stop_ids(self, value: Any) -> list[int]:
        items = _items(value, "stop_token_ids must be a list of token ids, such as [2]")
        if len(items) > MAX_STOP_TOKEN_IDS:
            raise ValueError(f"stop_token_ids holds {len(items)} ids; {MAX_STOP_TOKEN_IDS} at most would work")
        return [self._id(item, "an id in stop_token_ids") for item in items]

    def _allowed(self, value: Any) -> list[int]:
        items = _items(value, "allowed_token_ids must be a list of token ids, such as [5, 7]")
        if not items:
            raise ValueError("allowed_token_ids is empty, and nothing could be drawn; leave it out")
        return [self._id(item, "an id in allowed_token_ids") for item in items]

    def _id(self, value: Any, what: str) -> int:
        last = self._limits.num_tokens - 1
        return int(number(what, value, Range(whole=True, low=TOKEN_ID.low, high=last, works=0)))


def number(what: str, value: Any, bounds: Range) -> Any:
    """A Python number within bounds; NumPy's are taken too, but no booleans, and no floats for integers."""
    kind: Any = numbers.Integral if bounds.whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{what} is {_shown(value)}; it must be {bounds}, such as {bounds.works}")
    plain: Any
    try:
        plain = operator.index(value) if bounds.whole else float(value)
    except OverflowError:
        plain = math.nan
    if not bounds.holds(plain):
        raise ValueError(f"{what} is {_shown(value)}; it must be {bounds}, such as {bounds.works}")
    # Beyond 64 bits every count means the same: more than there is.
    return min(plain, 2**63 - 1) if bounds.whole and bounds.high is None else plain


def _flag(name: str, value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} is {_shown(value)}; True or False would work")
    return bool(value)


def _stop(value: Any) -> list[str]:
    items = (
        [value] if isinstance(value, str) else _items(value, "stop must be text or a list of texts, such as ['END']")
    )
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"stop holds {_shown(item)}; text such as 'END' would work")
        _check_plain(item, "stop")
    return items


def _bad_words(value: Any) -> list[str]:
    items = _items(value, "bad_words must be a list of texts, such as ['darn']")
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"bad_words holds {_shown(item)}; text such as 'darn' would work")
        if not 0 < len(item) <= MAX_BAD_WORD_CHARACTERS:
            raise ValueError(
                f"bad_words holds a text of {len(item)} characters; 1 to {MAX_BAD_WORD_CHARACTERS} would work"
            )
        _check_plain(item, "bad_words")
    return items


def _salt(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"cache_salt is {_shown(value)}; text such as 'team-a' would work")
    if len(value) > MAX_SALT_CHARACTERS:
        raise ValueError(f"cache_salt has {len(value)} characters; {MAX_SALT_CHARACTERS} or fewer would work")
    _check_plain(value, "cache_salt")
    return value


def _items(value: Any, problem: str) -> list[Any]:
    """A list of what an array or another sequence holds."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (Sequence, range)) or isinstance(value, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{problem}, not {_shown(value)}")
    return list(value)


def _check_plain(value: Any, what: str) -> None:
    """Text that UTF-8 can express and finite numbers, at any depth of a message."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise ValueError(
                    f"{what} holds half of a surrogate pair, which is no character; leave it out"
                ) from None
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{what} holds {item}; finite numbers alone would work")
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            stack += item


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."


@contextmanager
def _refusals() -> Iterator[None]:
    """The server's refusals as ValueErrors."""
    try:
        yield
    except ApiError as error:
        raise ValueError(error.message) from error
