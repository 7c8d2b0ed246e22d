"""Streamed and whole answers beside each other: the joined stream is the body, wherever an answer is cut.

Every case is asked both ways, with one choice and three, with and without log-probabilities, cut at every max_tokens
from 1 to 40 (scripted answers at later places too), eight requests at once. Text, thoughts, tool calls,
log-probabilities, the reason of the end and usage must be equal. The scripted cases fix what the model says, for every
form of calls; the others are what a model says with a seed that is drawn anew. The short form draws one cell in 25.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from octavo.models.store import default_model
from tests.support.scripted import scripted_config, write_scripted
from tests.support.serve import Serve
from tests.support.server import Server, serving
from tests.support.tiny import Tiny, write_hf

CHAT = "/v1/chat/completions"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Does it.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}},
        },
    },
    {"type": "function", "function": {"name": "g"}},
]
SCRIPTS = {
    "hermes": (
        'On it.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>{"name":"g"}</tool_call>',
        '<tool_call>{"name":"f","arguments":{"q":"😀 {é}\\n","n":[1,null]}}</tool_call> done',
        '<tool_call>{"name":"f","arguments":{"a":oops}}</tool_call>',
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name":"f","arguments":{"a":1}},{"name":"g"}]',
        'On it. [TOOL_CALLS]f[ARGS]{"a":1}[TOOL_CALLS]g{}',
    ),
    "llama3": ('{"name":"f","parameters":{"a":1}}; {"name":"g"}', '<|python_tag|>{"name":"h","parameters":{}}'),
    "json": ('On it.\n[{"name":"f","arguments":{"a":1}},{"name":"g"}]', '{"answer": [1, 2]}'),
}
WORDS = "No < call, <tool_ 世界 😀\n\n{1} </think> end"
THOUGHTS = '<think>\nhm </th\n</think>\n\nSo.\n<tool_call>{"name":"g"}</tool_call>'
PAST = tuple(range(43, 140, 4))
"""Cuts of scripted answers behind the first forty tokens."""


@dataclass(frozen=True)
class Case:
    """One request."""

    name: str
    path: str
    body: dict[str, Any]
    cuts: tuple[int, ...] = ()
    """Beside 1 to 40."""


@dataclass
class Found:
    """What came of a run."""

    cells: int = 0
    wrong: list[str] = field(default_factory=list)
    calls: int = 0
    """Cells with calls in them."""
    ends: set[str] = field(default_factory=set)


def parity(short: bool) -> dict[str, Any]:
    """The row."""
    seed = random.randrange(2**31)
    found = Found()
    with tempfile.TemporaryDirectory() as name:
        for server, cases in _servers(Path(name), short, seed):
            asyncio.run(_compare(server, cases, short, random.Random(seed), found))
    return {
        "bar": "text, tool calls, logprobs, finish_reason, usage equal",
        "figure": f"{found.cells - len(found.wrong)} of {found.cells} answers equal, {found.calls} of them with calls",
        "met": not found.wrong and found.calls > 0 and {"stop", "length", "tool_calls"} <= found.ends,
        "details": {"seed": seed, "wrong": found.wrong[:20], "ends": sorted(found.ends)},
    }


# --- what is asked --------------------------------------------------------------------------------


def _servers(folder: Path, short: bool, seed: int) -> Iterator[tuple[Server, list[Case]]]:
    """Each server with its cases; it runs until the next is asked for."""
    tiny = write_hf(folder / "tiny", Tiny(max_context=1024, tied=False)).path
    for form, scripts in SCRIPTS.items():
        if short and form != "hermes":
            continue
        path = write_scripted(folder / form, tiny, form)
        with serving(scripted_config(path, reasoning_parser="think")) as server:
            yield server, [*_scripted(form, (*scripts, WORDS)), *(_scripted(form, (THOUGHTS,)))]
    path = str(tiny) if short else str(default_model())
    engine = EngineConfig(model=ModelConfig(path=path, name="model"), kv=KVConfig(size_tokens=32_768))
    with serving(Serve(engine, ServerConfig(port=0))) as server:
        yield server, list(_said(seed))


def _scripted(form: str, scripts: Iterable[str]) -> Iterator[Case]:
    for number, script in enumerate(scripts):
        body = {"messages": [{"role": "user", "content": script}], "tools": TOOLS}
        yield Case(f"{form} {number}", CHAT, body, PAST)
        if number == 0:
            yield Case(f"{form}, one call", CHAT, {**body, "parallel_tool_calls": False}, PAST)
            yield Case(
                f"{form}, stop", CHAT, {**body, "stop": ["ments", "it"], "include_stop_str_in_output": True}, PAST
            )
            yield Case(f"{form}, no tools", CHAT, {**body, "tools": None}, PAST)


def _said(seed: int) -> Iterator[Case]:
    messages = [{"role": "user", "content": "Tell me of a book with eight leaves."}]
    drawn = {"messages": messages, "temperature": 1.0, "seed": seed}
    yield Case("greedy chat", CHAT, {"messages": messages, "temperature": 0})
    yield Case("drawn chat", CHAT, {**drawn, "top_p": 0.95, "frequency_penalty": 0.5})
    yield Case("stops", CHAT, {**drawn, "stop": ["e", " a"], "min_tokens": 1})
    yield Case("free calls", CHAT, {**drawn, "tools": TOOLS})
    yield Case("completion", "/v1/completions", {"prompt": "Once, ", "temperature": 1.5, "seed": seed})
    yield Case("two prompts", "/v1/completions", {"prompt": ["Once, ", "世界 😀"], "temperature": 1.5, "seed": seed})


# --- what is compared -----------------------------------------------------------------------------


async def _compare(server: Server, cases: list[Case], short: bool, rng: random.Random, found: Found) -> None:
    limit = asyncio.Semaphore(8)
    async with httpx.AsyncClient(base_url=server.url, timeout=120.0) as client:

        async def one(case: Case, n: int, logprobs: bool, most: int) -> None:
            body = {**case.body, "n": n, "max_tokens": most}
            if logprobs:
                body |= {"logprobs": True, "top_logprobs": 3} if case.path == CHAT else {"logprobs": 3}
            async with limit:
                whole = _of_body((await client.post(case.path, json=body)).raise_for_status().json())
                asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
                response = await client.post(case.path, json=asked)
                streamed = _of_stream(response.raise_for_status().text)
            found.cells += 1
            found.calls += any(choice.get("tool_calls") for choice in whole["choices"])
            found.ends |= {choice["finish_reason"] for choice in whole["choices"]}
            if whole != streamed:
                found.wrong.append(f"{case.name}, n {n}, logprobs {logprobs}, max_tokens {most}: {whole} != {streamed}")

        for case in cases:  # the cached tokens of usage are equal once the prompt is cached
            (await client.post(case.path, json={**case.body, "max_tokens": 1})).raise_for_status()
        cells = [
            (case, n, logprobs, most)
            for case in cases
            for n, logprobs, most in itertools.product((1, 3), (False, True), (*range(1, 41), *case.cuts))
        ]
        if short:
            cells = rng.sample(cells, len(cells) // 25)
        await asyncio.gather(*(one(*cell) for cell in cells))


def _of_body(body: dict[str, Any]) -> dict[str, Any]:
    """What must be equal."""
    choices = []
    for choice in body["choices"]:
        said = choice["message"] if "message" in choice else {"text": choice["text"]}
        calls = [
            {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
            for call in said.get("tool_calls", ())
        ]
        known = {key: said.get(key) for key in ("text", "content", "reasoning_content")}
        kept = {key: choice[key] for key in ("index", "logprobs", "finish_reason")}
        choices.append({**known, "tool_calls": calls, **kept})
    return {"choices": choices, "usage": body["usage"]}


def _of_stream(text: str) -> dict[str, Any]:
    """The same of the joined events."""
    lines = [line for line in text.split("\n") if line]
    assert lines[-1] == "data: [DONE]", lines[-1:]
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for line in lines[:-1]:
        event = msgspec.json.decode(line.removeprefix("data: "))
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            joined = choices.setdefault(choice["index"], _empty(choice["index"]))
            _join(joined, choice)
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


def _empty(index: int) -> dict[str, Any]:
    said = dict.fromkeys(("text", "content", "reasoning_content", "logprobs", "finish_reason"))
    return {**said, "index": index, "tool_calls": []}


def _join(joined: dict[str, Any], choice: dict[str, Any]) -> None:
    assert joined["finish_reason"] is None, "a piece came behind the end"
    delta = choice.get("delta", choice)
    for key in ("text", "content", "reasoning_content"):
        if delta.get(key) is not None:
            joined[key] = (joined[key] or "") + delta[key]
    for call in delta.get("tool_calls") or ():
        if "id" in call:
            assert call["index"] == len(joined["tool_calls"]), "calls come in order"
            joined["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
        joined["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    if choice["logprobs"] is not None:
        old = joined["logprobs"]
        joined["logprobs"] = choice["logprobs"] if old is None else _joined_logprobs(old, choice["logprobs"])
    joined["finish_reason"] = choice["finish_reason"]


def _joined_logprobs(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {key: value + new[key] if isinstance(value, list) else value for key, value in old.items()}
