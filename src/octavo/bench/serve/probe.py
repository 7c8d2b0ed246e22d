"""Asks a server what it takes before it is measured: its model's name, usage in streams, `ignore_eos`, token ids and
which, and how many tokens a word of text makes. A few short requests, none of them measured.
"""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import Client
from octavo.bench.serve.plan import Ask
from octavo.bench.serve.prompts import WORDS, Dialect
from octavo.config import ConfigError

_VOCABULARIES = (32_000, 16_000, 8_000, 4_000, 2_000, 1_000, 500, 250)
_PASSING = ("http 400", "http 422")
"""Failures that say: not in this form."""


async def probe(client: Client, ask: Ask) -> Dialect:
    """Raises ConfigError where the server cannot be measured at all."""
    model, max_len, vocab = await _model(client, ask)
    fields = await _fields(client, ask, model)
    usage = "stream_options" in fields
    if ask.api == "completions" and ask.prompts != "text":
        found = await _ids(client, ask, {"model": model, **fields}, vocab)
        if found is not None:
            return Dialect(model, max_len, found[0], found[1] if usage else 0, 1.0, usage, fields)
        if ask.prompts == "ids":
            raise ConfigError(f"--prompts ids: {client.target.url} takes no token ids; --prompts text would work")
    overhead, per_word = await _words(client, ask, {"model": model, **fields}) if usage else (0.0, 1.0)
    return Dialect(model, max_len, None, overhead, per_word, usage, fields)


async def _model(client: Client, ask: Ask) -> tuple[str, int | None, int | None]:
    try:
        status, raw = await client.request("GET", "/v1/models")
    except ConnectionError as error:
        raise ConfigError(f"no server answers there: {error}") from error
    if status in (401, 403):
        raise ConfigError(f"{client.target.url} answers with status {status}; --api-key KEY is needed")
    try:
        listed = msgspec.json.decode(raw)["data"] if status == 200 else []
        named = [one for one in listed if one["id"] == ask.model]
        first: dict[str, Any] = (named or listed or [{}])[0]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{client.target.url}/v1/models is no list of models: {raw[:80]!r}") from error
    name = ask.model or first.get("id")
    if not name:
        raise ConfigError(f"{client.target.url}/v1/models names no model; --model NAME is needed")
    vocab = ask.vocab or (first.get("meta") or {}).get("n_vocab")
    return str(name), first.get("max_model_len"), vocab


async def _fields(client: Client, ask: Ask, model: str) -> dict[str, Any]:
    """The fullest of three forms that the server takes."""
    usage = {"stream_options": {"include_usage": True}}
    plain: dict[str, Any] = {"stream": True, "temperature": ask.temperature}
    answer = Answer()
    for fields in ({**plain, **usage, "ignore_eos": True}, {**plain, **usage}, plain):
        answer = await _try(client, ask, {"model": model, **fields}, " ".join(WORDS[:8]), 2)
        if answer.failure is None:
            if "stream_options" in fields and answer.completion_tokens is None:
                return {name: value for name, value in fields.items() if name != "stream_options"}
            return fields
        if answer.failure not in _PASSING:
            break
    raise ConfigError(
        f"{client.target.url}{ask.path} did not answer a short request: {answer.failure}: {answer.detail}"
    )


async def _ids(
    client: Client, ask: Ask, fields: dict[str, Any], vocab: int | None
) -> tuple[tuple[int, int], float] | None:
    """The range of ids and the tokens that are added."""
    for high in (vocab,) if vocab else _VOCABULARIES:
        answer = await _try(client, ask, fields, [high - 1, high // 2], 1)
        if answer.failure is None:
            added = (answer.prompt_tokens or 2) - 2
            # Ids taken for something else make more tokens than there were ids.
            return ((min(100, high // 2), high), added) if 0 <= added <= 2 else None
        if answer.failure not in _PASSING:
            return None
    return None


async def _words(client: Client, ask: Ask, fields: dict[str, Any]) -> tuple[float, float]:
    """(tokens that are added, tokens a word), from the usage of two texts."""
    counts = []
    for size in (len(WORDS) // 2, len(WORDS)):
        answer = await _try(client, ask, fields, " ".join(WORDS[:size]), 1)
        if answer.failure is not None or not answer.prompt_tokens:
            return 0.0, 1.0
        counts.append((size, answer.prompt_tokens))
    (few, less), (many, more) = counts
    per_word = (more - less) / (many - few)
    return max(0.0, round(less - per_word * few, 3)), per_word


async def _try(client: Client, ask: Ask, fields: dict[str, Any], prompt: str | list[int], output: int) -> Answer:
    what: dict[str, Any] = (
        {"prompt": prompt} if ask.api == "completions" else {"messages": [{"role": "user", "content": prompt}]}
    )
    return await client.stream(ask.path, msgspec.json.encode({**fields, **ask.extra, **what, "max_tokens": output}))
