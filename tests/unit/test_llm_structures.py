"""`schema` and `response_model` of `LLM`: every finished answer has the form that was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.config import EngineConfig, ExecutionConfig, KVConfig, ModelConfig
from octavo.llm_errors import RequestFailed, StructureError
from tests.support.tiny import Tiny, write_hf
from tests.support.traffic import fresh_random

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["in", "the"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}


class Thing:
    """What a pydantic model has."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return SCHEMA

    @classmethod
    def model_validate_json(cls, text: str) -> Thing:
        return cls(**json.loads(text))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path: Path = write_hf(tmp_path_factory.mktemp("structures") / "tiny", Tiny(max_context=512, tied=False)).path
    config = EngineConfig(
        model=ModelConfig(path=str(path)),
        kv=KVConfig(size_tokens=4096),
        execution=ExecutionConfig(threads=1),
        validate_kv=True,
    )
    with LLM(config=config) as shared:
        yield shared


def test_answers_have_the_form_of_the_schema(llm: LLM) -> None:
    rng = fresh_random()
    prompts = [[rng.randrange(10, 200) for _ in range(8)] for _ in range(6)]
    for answer in llm.generate(prompts, schema=SCHEMA, max_tokens=100, temperature=1.2):
        found = answer.parsed
        assert answer.finish_reason == "stop"
        assert set(found) == {"kind", "count"}
        assert found["kind"] in ("in", "the") and 0 <= found["count"] <= 99


def test_a_stream_joins_to_an_instance_of_the_class(llm: LLM) -> None:
    stream = llm.stream([20, 21, 22], response_model=Thing, max_tokens=100, temperature=0.0)
    text = "".join(stream)
    thing = stream.result.parsed
    assert isinstance(thing, Thing)
    assert json.loads(text) == {"kind": thing.kind, "count": thing.count}
    assert llm.generate([20, 21, 22], response_model=Thing, max_tokens=100, temperature=0.0).text == text


def test_an_answer_that_was_cut_says_so(llm: LLM) -> None:
    answer = llm.generate([20, 21], schema=SCHEMA, max_tokens=2)
    assert answer.finish_reason == "length"
    with pytest.raises(StructureError, match="a higher max_tokens would work"):
        _ = answer.parsed


def test_a_schema_that_cannot_be_had_is_refused_and_the_next_call_works(llm: LLM) -> None:
    with pytest.raises(RequestFailed, match="not"):
        llm.generate([20, 21], schema={"not": {"type": "string"}}, max_tokens=50)
    assert llm.generate([20, 21], schema=SCHEMA, max_tokens=100).parsed["kind"] in ("in", "the")
