"""Suggested sampling: read, bounded, applied where a request is silent, announced, and switched off."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from octavo.llm import LLM
from octavo.models.checkpoint import open_checkpoint
from octavo.models.spec import ModelError
from octavo.server.openapi import document
from octavo.server.params import ModelLimits, sampling_params
from octavo.server.protocol import CompletionBody
from octavo.types import SamplingDefaults
from tests.support.tiny import write_gguf, write_hf

SUGGESTED = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05}


def directory(folder: Path, **generation: Any) -> Path:
    path = write_hf(folder).path
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def suggestions(path: Path) -> SamplingDefaults:
    checkpoint = open_checkpoint(path)
    try:
        return checkpoint.sampling()
    finally:
        checkpoint.close()


def test_both_formats_give_the_same_suggestions(tmp_path: Path) -> None:
    one = suggestions(directory(tmp_path / "m", **SUGGESTED, do_sample=True, max_new_tokens=7))
    keys = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
    metadata = {f"general.sampling.{keys.get(name, name)}": value for name, value in SUGGESTED.items()}
    other = suggestions(write_gguf(tmp_path / "m.gguf", metadata=metadata).path)
    assert one.chosen() == other.chosen() == SUGGESTED
    assert "generation_config.json" in one.source


def test_absent_and_null_settings_suggest_nothing(tmp_path: Path) -> None:
    assert suggestions(directory(tmp_path / "m", temperature=None, eos_token_id=[2, 0])).chosen() == {}
    assert suggestions(write_gguf(tmp_path / "m.gguf").path) == SamplingDefaults()


def test_several_end_ids_are_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(directory(tmp_path / "m", eos_token_id=[0, 5]))
    assert checkpoint.eos_token_ids == (0, 5, 2)
    checkpoint.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", 2.5), ("temperature", "hot"), ("top_k", 1.5), ("top_p", True), ("repetition_penalty", 0)],
)
def test_a_suggestion_out_of_bounds_is_refused_unless_switched_off(tmp_path: Path, key: str, value: Any) -> None:
    path = directory(tmp_path / "m", **{key: value})
    with pytest.raises(ModelError, match=rf"generation_config\.json: {key} .*--generation-config none"):
        suggestions(path)
    with LLM(path, config=config("none")) as llm:
        assert llm.info.sampling == SamplingDefaults()


def test_settings_without_a_counterpart_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        suggestions(directory(tmp_path / "m", typical_p=0.5, num_beams=1, no_repeat_ngram_size=3))
    assert "typical_p" in caplog.text and "no_repeat_ngram_size" in caplog.text and "num_beams" not in caplog.text


def config(generation: str) -> EngineConfig:
    return EngineConfig(model=ModelConfig(generation_config=generation), kv=KVConfig(size_tokens=256))


def test_a_silent_request_gets_them_and_an_explicit_one_does_not() -> None:
    limits = ModelLimits(1000, 100, SamplingDefaults(**SUGGESTED))

    def params(**fields: Any) -> Any:
        return sampling_params(CompletionBody(prompt=[1], **fields), 1, None, limits, ServerConfig())

    silent = params()
    assert {name: getattr(silent, name) for name in SUGGESTED} == SUGGESTED
    own = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    explicit = params(**own)
    assert {name: getattr(explicit, name) for name in own} == own | {"top_k": 0}
    mixed = params(temperature=1.0)
    assert (mixed.temperature, mixed.top_k) == (1.0, 20)


def test_the_engine_announces_and_applies_them(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", temperature=0.0, repetition_penalty=5.0)
    with LLM(path, config=config("model")) as llm:
        (line,) = [line for line in llm.report if line.startswith("sampling")]
        assert "temperature 0, repetition_penalty 5" in line and "generation_config.json" in line
        asked = {"max_tokens": 12, "ignore_eos": True}
        silent = llm.generate([5, 6, 7], **asked).tokens
        assert silent == llm.generate([5, 6, 7], **asked, temperature=0.0, repetition_penalty=5.0).tokens
        assert silent != llm.generate([5, 6, 7], **asked, repetition_penalty=1.0).tokens
    with LLM(path, config=config("none")) as llm:
        assert not [line for line in llm.report if line.startswith("sampling")]
        assert llm.info.sampling == SamplingDefaults()


def test_the_api_document_names_them() -> None:
    schemas = document(SamplingDefaults(temperature=0.6, top_k=20))["components"]["schemas"]
    for body in ("ChatBody", "CompletionBody"):
        assert schemas[body]["properties"]["temperature"]["default"] == 0.6
        assert schemas[body]["properties"]["top_k"]["default"] == 20
    assert document()["components"]["schemas"]["ChatBody"]["properties"]["temperature"].get("default") is None
