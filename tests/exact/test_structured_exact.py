"""Structured outputs: the same tokens and log-probabilities whatever is jumped over, chunked, preempted or replayed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.engine.core import EngineCore
from octavo.execution.executor import LocalExecutor
from octavo.models.tokenizer import Tokenizer, load_tokenizer
from octavo.types import FinishReason, NewRequest, SamplingParams, Structure
from tests.support.executors import Build
from tests.support.tiny import Tiny, write_hf

Answer = tuple[list[int], list[float], FinishReason | None]
OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["alpha", "alpine", "beta"]},
        "tags": {"type": "array", "items": {"enum": ["in", "the", "on"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
STRUCTURES = (
    Structure(kind="json_schema", text=json.dumps(OBJECT)),
    Structure(kind="json_object"),
    Structure(kind="regex", text="(the|in|on) [a-c]{3,9}(; again){0,3}"),
    Structure(kind="choice", text=json.dumps(["the in", "then", "there", "世界 in é"])),
    Structure(kind="lark", text='start: "<" name ">" body "</end>"\nname: /[a-z]{2,5}/\nbody: /[ a-z]{0,12}/'),
    Structure(kind="gbnf", text='root ::= "call(" arg ("," arg)* ")"\narg ::= [0-9] [0-9]? [0-9]?'),
)
PREFIX = [20 + i % 200 for i in range(70)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("models") / "tiny", Tiny(max_context=512, tied=False)).path


def requests(rng: random.Random, count: int) -> list[NewRequest]:
    found = []
    for number in range(count):
        plain = number % 4 == 3
        params = SamplingParams(
            max_tokens=110 if plain else rng.choice([3, 60, 110]),
            min_tokens=0,
            temperature=rng.choice([0.0, 0.7, 1.3]),
            top_k=rng.choice([0, 20]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            frequency_penalty=rng.choice([0.0, 0.6]),
            logit_bias=((30, 2.0),) if rng.random() < 0.3 else (),
            logprobs=2 if rng.random() < 0.4 else None,
            ignore_eos=plain or rng.random() < 0.2,
            structure=None if plain else STRUCTURES[(3 * number) % 7 % len(STRUCTURES)],
        )
        prompt = PREFIX[: rng.choice([1, 40, 70])] + [rng.randrange(10, 60) for _ in range(rng.randrange(1, 9))]
        found.append(NewRequest(request_id=number, prompt=prompt, params=params, seed=number // 2, choice=number % 2))
    return found


def answers(executor: LocalExecutor, asked: list[NewRequest], alone: bool = False) -> tuple[list[Answer], EngineCore]:
    core = EngineCore(executor.config, executor, structures=executor.structures)
    found: list[Answer] = [(list(r.generated), [], None) for r in asked]
    for group in [[r] for r in asked] if alone else [asked]:
        for request in group:
            core.handle(request)
        while core.has_work:
            output = core.step()
            core.validate()
            for delta in output.deltas if output is not None else ():
                assert delta.error is None, delta.error
                tokens, logprobs, _ = found[delta.request_id]
                tokens.extend(delta.tokens)
                logprobs.extend(v for entry in delta.logprobs or () for v in (entry.logprob, *entry.top_logprobs))
                found[delta.request_id] = (tokens, logprobs, delta.finish)
    return found, core


def check(answer: Answer, request: NewRequest, tokenizer: Tokenizer) -> None:
    """What ended by itself is what was asked for."""
    structure = request.params.structure
    if structure is None or answer[2] is not FinishReason.STOP:
        return
    text = tokenizer.decode(answer[0])
    if structure.kind == "json_schema":
        value = json.loads(text)
        assert set(value) == {"name", "age", "kind", "tags"} and 0 <= value["age"] <= 130 and len(value["name"]) <= 12
    elif structure.kind == "json_object":
        assert isinstance(json.loads(text), dict)
    elif structure.kind == "choice":
        assert text in json.loads(structure.text)
    elif structure.kind == "lark":
        assert text.startswith("<") and text.endswith("</end>")


def test_all_ways_of_running_give_the_same_bits(build: Build, model: Path, rng: random.Random) -> None:
    asked = requests(rng, 12)
    tokenizer = load_tokenizer(model)
    room: dict[str, Any] = {"size_tokens": 4096, "max_model_len": 224, "max_num_batched_tokens": 256}
    right, _ = answers(build(model, **room, jump_forward=False), asked, alone=True)
    assert sum(answer[2] is FinishReason.STOP for answer in right) > 0
    for answer, request in zip(right, asked, strict=True):
        check(answer, request, tokenizer)
    tight = {"size_tokens": 256, "max_model_len": 224}
    ways: dict[str, dict[str, Any]] = {
        "stepwise": {**room, "jump_forward": False},
        "jumping": room,
        "chunks": {**room, "max_num_batched_tokens": 24},
        "preempted": {**tight, "max_num_batched_tokens": 40, "prefix_cache": False},
        "preempted, cached": {**tight, "max_num_batched_tokens": 40, "partial_preemption": False},
        "no program": {**room, "program": False},
        "whole prompts": {**room, "chunked_prefill": False},
    }
    preemptions = 0
    for name, way in ways.items():
        got, core = answers(build(model, **way), asked)
        assert got == right, name
        preemptions += core.stats().preemptions
        assert name.startswith("preempted") or not core.stats().preemptions, name
    assert preemptions > 0


def test_what_a_grammar_fixes_is_not_drawn_one_by_one(build: Build, model: Path) -> None:
    text = "the one and only answer, " * 8
    asked = [
        NewRequest(
            request_id=0,
            prompt=[30, 31],
            params=SamplingParams(max_tokens=400, structure=Structure(kind="choice", text=json.dumps([text]))),
            seed=1,
        )
    ]
    found, core = answers(build(model, size_tokens=4096, max_model_len=512), asked)
    assert found[0][2] is FinishReason.STOP
    assert load_tokenizer(model).decode(found[0][0]) == text
    assert core.stats().steps < len(found[0][0]) / 2


def test_a_request_goes_on_from_any_token_that_it_had(build: Build, model: Path, rng: random.Random) -> None:
    executor = build(model, size_tokens=4096, max_model_len=256, max_num_batched_tokens=256)
    asked = [r for r in requests(rng, 12) if r.params.logprobs is None]
    right, _ = answers(executor, _numbered(asked))
    for _ in range(3):
        again = []
        for number, request in enumerate(_numbered(asked)):
            had = right[number][0][: rng.randrange(len(right[number][0]) + 1)]
            again.append(_with(request, had))
        assert answers(executor, again)[0] == right


def _numbered(asked: list[NewRequest]) -> list[NewRequest]:
    return [msgspec.structs.replace(request, request_id=number) for number, request in enumerate(asked)]


def _with(request: NewRequest, generated: list[int]) -> NewRequest:
    return msgspec.structs.replace(request, generated=generated)
