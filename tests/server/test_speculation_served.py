"""Speculation over HTTP: bodies, streams, stop texts, logprobs and usage are those without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig, SpeculativeConfig
from tests.support.serve import Serve
from tests.support.server import Server, serving

THE = [100] * 50
CASES: list[dict[str, Any]] = [
    {"prompt": THE, "temperature": 0, "logit_bias": {"50": -100}, "logprobs": 2},
    {"prompt": THE, "temperature": 0, "frequency_penalty": 2.0},
    {"prompt": THE, "temperature": 0, "bad_words": ["a", "the"]},
    {"prompt": [5, 6, 7, 8] * 12, "temperature": 0.3, "seed": 4, "n": 3, "logprobs": 1},
    {"prompt": [5, 6, 7, 8] * 12, "temperature": 0, "min_tokens": 20, "repetition_penalty": 1.2},
    {"prompt": "a b c a b c a b c a b", "temperature": 0, "stop": [" ", "e"]},
    {"prompt": "a b c a b c a b c a b", "temperature": 0, "max_tokens": 3},
]


def _served(path: Path, speculative: SpeculativeConfig) -> Serve:
    engine = EngineConfig(
        model=ModelConfig(path=str(path), name="tiny"),
        kv=KVConfig(size_tokens=8192),
        speculative=speculative,
        validate_kv=True,
    )
    return Serve(engine, ServerConfig(port=0))


@pytest.fixture(scope="module")
def plain(tiny_path: Path) -> Iterator[Server]:
    with serving(_served(tiny_path, SpeculativeConfig())) as server:
        yield server


@pytest.fixture(scope="module")
def drafting(tiny_path: Path) -> Iterator[Server]:
    with serving(_served(tiny_path, SpeculativeConfig("ngram", 5, adaptive=False))) as server:
        yield server


def _without_details(body: dict[str, Any]) -> dict[str, Any]:
    usage = {name: count for name, count in body["usage"].items() if not name.endswith("details")}
    return {"choices": body["choices"], "usage": usage}


def _metric(server: Server, name: str) -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("fields", CASES, ids=lambda fields: ",".join(sorted(fields)))
def test_answers_are_those_without_it(plain: Server, drafting: Server, fields: dict[str, Any]) -> None:
    fields = {"max_tokens": 60, "ignore_eos": True, **fields}
    expected, got = plain.complete(**fields), drafting.complete(**fields)
    assert _without_details(got) == _without_details(expected)
    assert "completion_tokens_details" not in expected["usage"]
    events = drafting.stream("/v1/completions", {**fields, "stream_options": {"include_usage": True}})
    text = "".join(choice["text"] for event in events for choice in event["choices"] if choice["index"] == 0)
    assert text == expected["choices"][0]["text"]
    assert events[-1]["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


def test_usage_and_metrics_tell_what_was_guessed(drafting: Server) -> None:
    before = _metric(drafting, "octavo_drafts_checked_total"), _metric(drafting, "octavo_drafts_accepted_total")
    details = drafting.complete(prompt=THE, max_tokens=60, temperature=0, ignore_eos=True)["usage"][
        "completion_tokens_details"
    ]
    after = _metric(drafting, "octavo_drafts_checked_total"), _metric(drafting, "octavo_drafts_accepted_total")
    accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert (after[0] - before[0], after[1] - before[1]) == (accepted + rejected, accepted)
    assert accepted + rejected > 0 and _metric(drafting, "octavo_speculation_speedup") > 0


def test_nothing_is_told_of_drafts_where_there_are_none(plain: Server) -> None:
    assert "draft" not in plain.client.get("/metrics").text
