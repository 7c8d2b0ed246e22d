"""A hundred kinds of request that no server should serve: what each sends, drawn anew each time.

Every kind is refused with a 4xx, and quickly. Bodies are built before anything is timed.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Raw:
    """One request as bytes."""

    content: bytes

    @classmethod
    def of(cls, path: str, body: bytes, method: str = "POST", headers: str = "") -> Raw:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        return cls(head.encode("latin-1") + body)


Make = Callable[[random.Random], Raw]


def _completion(**fields: Any) -> Raw:
    return Raw.of(COMPLETIONS, json.dumps({"prompt": "a", "max_tokens": 4, **fields}).encode())


def _chat(**fields: Any) -> Raw:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, **fields}
    return Raw.of(CHAT, json.dumps(body).encode())


def _tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def _text(rng: random.Random, longest: int = 40) -> str:
    return "".join(rng.choice("abc \u00e9\u4e16\U0001f600<|>{}[]\\\"'") for _ in range(rng.randint(1, longest)))


def _nested(rng: random.Random, depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"x": value}
    return value


def _numbers() -> dict[str, Make]:
    """Numbers that are out of bounds, or none, a field and a way."""
    kinds: dict[str, Make] = {}

    def field(name: str, make: Callable[[random.Random], Any], chat: bool = False) -> None:
        kinds[name] = lambda rng: (_chat if chat else _completion)(**{name.split(":")[0]: make(rng)})

    field("max_tokens:zero", lambda rng: 0)
    field("max_tokens:negative", lambda rng: -rng.randint(1, 2**40))
    field("max_tokens:text", lambda rng: str(rng.randint(1, 99)))
    field("max_tokens:fraction", lambda rng: rng.random() + 1)
    field("max_tokens:bool", lambda rng: True)
    field("max_tokens:list", lambda rng: [rng.randint(1, 99)])
    field("min_tokens:above", lambda rng: rng.randint(5, 10**6))
    field("min_tokens:negative", lambda rng: -1)
    field("temperature:negative", lambda rng: -rng.random() - 0.001)
    field("temperature:hot", lambda rng: 2.1 + rng.random() * 1e9)
    field("temperature:list", lambda rng: [0.5])
    field("top_p:above", lambda rng: 1.001 + rng.random())
    field("top_p:negative", lambda rng: -0.1)
    field("top_k:below", lambda rng: -rng.randint(2, 10**9))
    field("top_k:fraction", lambda rng: 1.5)
    field("min_p:above", lambda rng: 1.5)
    field("presence_penalty:above", lambda rng: 2.5 + rng.random())
    field("frequency_penalty:below", lambda rng: -2.5)
    field("repetition_penalty:zero", lambda rng: 0)
    field("repetition_penalty:tiny", lambda rng: 10.0 ** -rng.randint(5, 300))
    field("seed:huge", lambda rng: 2 ** rng.randint(64, 90))
    field("seed:text", lambda rng: "x")
    field("n:zero", lambda rng: 0)
    field("n:huge", lambda rng: rng.randint(1000, 2**62))
    field("n:negative", lambda rng: -rng.randint(1, 99))
    field("logprobs:many", lambda rng: rng.randint(21, 10**6))
    field("logprobs:negative", lambda rng: -1)
    field("top_logprobs:alone", lambda rng: 2, chat=True)
    field("priority:out", lambda rng: rng.choice([-99, 99]))
    field("deadline_ms:negative", lambda rng: -rng.randint(0, 1000))
    return kinds


def _lists() -> dict[str, Make]:
    """Lists and tables that are too long, or hold what they may not."""
    return {
        "stop:many": lambda rng: _completion(stop=["x"] * rng.randint(17, 20_000)),
        "stop:long": lambda rng: _completion(stop="x" * rng.randint(1025, 100_000)),
        "stop:empty": lambda rng: _completion(stop=rng.choice(["", [""], ["a", ""]])),
        "stop:wrong": lambda rng: _completion(stop=rng.choice([5, [5], {"a": 1}, [["a"]]])),
        "stop_token_ids:many": lambda rng: _completion(stop_token_ids=list(range(rng.randint(65, 5000)))),
        "stop_token_ids:unknown": lambda rng: _completion(stop_token_ids=[rng.randint(10**6, 2**62)]),
        "stop_token_ids:negative": lambda rng: _completion(stop_token_ids=[-1]),
        "logit_bias:many": lambda rng: _completion(logit_bias={str(i): 1 for i in range(rng.randint(1025, 9000))}),
        "logit_bias:unknown": lambda rng: _completion(logit_bias={str(rng.randint(10**6, 10**12)): 1}),
        "logit_bias:word": lambda rng: _completion(logit_bias={_text(rng) + "x": 1}),
        "logit_bias:beyond": lambda rng: _completion(logit_bias={"5": rng.choice([-101, 1e9])}),
        "logit_bias:twice": lambda rng: _completion(logit_bias={"5": 1, "05": 1}),
        "logit_bias:list": lambda rng: _completion(logit_bias=[1, 2]),
        "prompt:many": lambda rng: _completion(prompt=["a"] * rng.randint(65, 20_000)),
        "prompt:empty": lambda rng: _completion(prompt=rng.choice(["", [], [""], [[]], [[1], []]])),
        "prompt:unknown id": lambda rng: _completion(prompt=[rng.randint(10**6, 2**40)]),
        "prompt:negative id": lambda rng: _completion(prompt=[1, -rng.randint(1, 10**9)]),
        "prompt:huge id": lambda rng: _completion(prompt=[2 ** rng.randint(64, 100)]),
        "prompt:fraction": lambda rng: _completion(prompt=[1.5]),
        "prompt:bool": lambda rng: _completion(prompt=[True]),
        "prompt:mixed": lambda rng: _completion(prompt=rng.choice([["a", 1], [1, "a"], [["a"], "a"]])),
        "prompt:object": lambda rng: _completion(prompt={"text": _text(rng)}),
        "prompt:deep": lambda rng: _completion(prompt=[[[1]]]),
        "prompt:long": lambda rng: _completion(prompt=[5] * rng.randint(9000, 200_000)),
        "prompt:long text": lambda rng: _completion(prompt="ab " * rng.randint(150_000, 500_000)),
        "choices:many": lambda rng: _completion(prompt=["a"] * 64, n=16),
        "tokens:many": lambda rng: _completion(prompt=["a"] * 8, n=16, max_tokens=8000, logprobs=20),
        "messages:empty": lambda rng: _chat(messages=[]),
        "messages:text": lambda rng: _chat(messages=_text(rng)),
        "messages:number": lambda rng: _chat(messages=[rng.randint(0, 9)]),
        "messages:no role": lambda rng: _chat(messages=[{"content": "a"}]),
        "messages:role": lambda rng: _chat(messages=[{"role": _text(rng), "content": "a"}]),
        "messages:no content": lambda rng: _chat(messages=[{"role": "user"}]),
        "messages:content": lambda rng: _chat(messages=[{"role": "user", "content": 5}]),
        "messages:part": lambda rng: _chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        "messages:parts": lambda rng: _chat(messages=[{"role": "user", "content": [{"type": "x"}] * 5000}]),
        "messages:part text": lambda rng: _chat(messages=[{"role": "user", "content": [{"type": "text"}]}]),
        "messages:extra": lambda rng: _chat(messages=[{"role": "user", "content": "a", _text(rng) + "_": 1}]),
        "messages:many": lambda rng: _chat(messages=[{"role": "user", "content": "a"}] * rng.randint(4097, 9000)),
        "messages:long": lambda rng: _chat(messages=[{"role": "user", "content": "ab " * 400_000}]),
    }  # fmt: skip


def _words() -> dict[str, Make]:
    """Fields that are not there, or ask for what cannot be."""
    return {
        "unknown field": lambda rng: _completion(**{f"field_{rng.randint(0, 10**9)}": 1}),
        "long field": lambda rng: _completion(**{"x" * rng.randint(1000, 100_000): 1}),
        "bad_words": lambda rng: _completion(bad_words=["x"] * 20_000),
        "model": lambda rng: _completion(model=f"none-{rng.randint(0, 10**9)}"),
        "long model": lambda rng: _completion(model="m" * rng.randint(513, 10_000)),
        "stream": lambda rng: _completion(stream="yes"),
        "stream_options": lambda rng: _completion(stream_options={"include_usage": True}),
        "best_of": lambda rng: _completion(best_of=rng.randint(17, 10**6)),
        "template": lambda rng: _chat(chat_template="{{ ''.__class__.__mro__ }}"),
        "cache_salt": lambda rng: _completion(cache_salt="s" * 300),
        "tools:many": lambda rng: _chat(tools=[_tool(f"f{i}") for i in range(rng.randint(129, 2000))]),
        "tools:deep": lambda rng: _chat(tools=[_tool("f", parameters={"a": _nested(rng, 100)})]),
        "tools:name": lambda rng: _chat(tools=[_tool("f " + _text(rng))]),
        "tools:twice": lambda rng: _chat(tools=[_tool("f")] * 2),
        "tools:long": lambda rng: _chat(tools=[_tool("f", description="ab " * 400_000)]),
        "tool_choice": lambda rng: _chat(tool_choice={"type": "function", "function": {"name": "f"}}),
        "audio": lambda rng: _chat(audio={"voice": "x"}),
        "no prompt": lambda rng: Raw.of(COMPLETIONS, b"{}"),
        "no messages": lambda rng: Raw.of(CHAT, b'{"max_tokens": 4}'),
    }


def _bodies() -> dict[str, Make]:
    """Bodies that are no JSON object, or too much of one."""

    def raw(make: Callable[[random.Random], bytes]) -> Make:
        return lambda rng: Raw.of(COMPLETIONS, make(rng))

    return {
        "deep lists": raw(lambda rng: b'{"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
        "deep objects": raw(lambda rng: b'{"x":' * 5000 + b"1" + b"}" * 5000),
        "deep mixture": lambda rng: _completion(user=_nested(rng, rng.randint(70, 200))),
        "many lists": raw(lambda rng: b'{"prompt": "a", "user": [' + b"[]," * 200_000 + b"[]]}"),
        "many values": raw(lambda rng: b'{"prompt": [' + b"1," * 1_000_000 + b"1]}"),
        "many keys": raw(lambda rng: b'{"prompt": "a", "user": {' + b'"":1,' * 300_000 + b'"":1}}'),
        "cut": raw(lambda rng: b'{"prompt": "a", "max_tok'),
        "bytes": raw(lambda rng: rng.randbytes(rng.randint(1, 4000))),
        "invalid UTF-8": raw(lambda rng: b'{"prompt": "\xff\xfe"}'),
        "UTF-16": raw(lambda rng: '{"prompt": "a"}'.encode("utf-16")),
        "surrogate": raw(lambda rng: b'{"prompt": "\\ud800"}'),
        "duplicate": raw(lambda rng: b'{"prompt": "a", "prompt": "b"}'),
        "NaN": raw(lambda rng: b'{"prompt": "a", "temperature": NaN}'),
        "infinite": raw(lambda rng: b'{"prompt": "a", "top_p": 1e999}'),
        "digits": raw(lambda rng: b'{"prompt": "a", "seed": ' + b"9" * rng.randint(5000, 100_000) + b"}"),
        "null": raw(lambda rng: rng.choice([b"null", b"[]", b'"a"', b"5", b""])),
        "two objects": raw(lambda rng: b'{"prompt": "a"} {"prompt": "b"}'),
        "too large": raw(lambda rng: b" " * (5 << 20)),
    }


def _heads() -> dict[str, Make]:
    """What is wrong before the body."""

    def raw(make: Callable[[random.Random], bytes]) -> Make:
        return lambda rng: Raw(make(rng))

    return {
        "no HTTP": raw(lambda rng: rng.choice([b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"GET\r\n\r\n"])),
        "header": raw(lambda rng: b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000 + b"\r\n\r\n"),
        "headers": raw(lambda rng: b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 6000 + b"\r\n"),
        "long path": raw(lambda rng: b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        "path": lambda rng: Raw.of(f"/v1/{rng.randint(0, 10**9)}", b"", "GET"),
        "method": lambda rng: Raw.of(COMPLETIONS, b"", rng.choice(["GET", "PUT", "DELETE", "PATCH"])),
        "name": lambda rng: Raw(b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n"),
        "origin": lambda rng: Raw.of(COMPLETIONS, b'{"prompt": "a"}', headers="origin: https://evil.example\r\n"),
        "gzip": lambda rng: Raw.of(
            COMPLETIONS, gzip.compress(b'{"prompt": "a"}'), headers="content-encoding: gzip\r\n"
        ),
        "length": raw(lambda rng: b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n"),
        "admin": lambda rng: Raw.of("/admin/anything", b"{}"),
    }


KINDS: dict[str, Make] = {**_numbers(), **_lists(), **_words(), **_bodies(), **_heads()}


def draw(rng: random.Random, count: int) -> list[tuple[str, Raw]]:
    """So many requests, of every kind about as many, in any order."""
    names = [*KINDS] * (-(-count // len(KINDS)))
    drawn = [(name, KINDS[name](rng)) for name in names[:count]]
    rng.shuffle(drawn)
    return drawn
