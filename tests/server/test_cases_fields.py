"""Kinds of fault seen in other engines, as small cases: sampling fields (B3, D5, D6), and fields through crashes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.config import EngineConfig, ExecutionConfig, KVConfig, ModelConfig, SchedulerConfig, ServerConfig
from octavo.engine import faults
from tests.support.serve import Serve
from tests.support.server import serving

PROMPT = [70, 80, 90, 100]


def load(path: Path) -> LLM:
    config = EngineConfig(
        model=ModelConfig(path=str(path)),
        kv=KVConfig(size_tokens=2048),
        execution=ExecutionConfig(threads=1),
        validate_kv=True,
    )
    return LLM(config=config)


@pytest.fixture(scope="module")
def ending(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """The model with a second id that ends answers: one that its greedy answer says, late and for the first time."""
    with load(tiny_path) as llm:
        tokens = llm.generate(PROMPT, temperature=0, max_tokens=12, ignore_eos=True).tokens
        place = next(at for at in range(4, 12) if tokens[at] not in tokens[:at])
        text = llm.generate(PROMPT, temperature=0, max_tokens=place, ignore_eos=True).text
    folder = tmp_path_factory.mktemp("ending") / "tiny"
    shutil.copytree(tiny_path, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, tokens[place]]}))
    return folder, tokens[place], text


def test_b3_d6_every_end_of_a_model_ends_and_waits_for_min_tokens(ending: tuple[Path, int, str]) -> None:
    folder, end, text = ending
    with load(folder) as llm:
        stopped = llm.generate(PROMPT, temperature=0, max_tokens=40)
        assert stopped.finish_reason == "stop" and stopped.tokens[-1] == end and stopped.text == text
        longer = llm.generate(PROMPT, temperature=0, max_tokens=40, min_tokens=len(stopped.tokens) + 3)
        assert len(longer.tokens) >= len(stopped.tokens) + 3
        assert {2, end}.isdisjoint(longer.tokens[: len(stopped.tokens) + 3])
        through = llm.generate(PROMPT, temperature=0, max_tokens=20, ignore_eos=True)
        assert len(through.tokens) == 20 and through.finish_reason == "length" and end in through.tokens
        for bias in ({2: 100}, {end: 100}):
            assert len(llm.generate(PROMPT, logit_bias=bias, max_tokens=9).tokens) == 1
            held = llm.generate(PROMPT, logit_bias=bias, max_tokens=9, min_tokens=4)
            assert len(held.tokens) == 5 and held.finish_reason == "stop"
        with pytest.raises(ValueError, match="min_tokens"):
            llm.generate(PROMPT, max_tokens=3, min_tokens=4)


def test_d5_penalties_and_rules_of_one_request_leave_others_as_they_are(tiny_path: Path) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.5, "frequency_penalty": 1.5},
        {"bad_words": ["e", "in"], "min_tokens": 9},
        {"allowed_token_ids": [70, 71, 72, 73]},
        {"prompt_logprobs": 2, "logprobs": 2},
    ]
    with load(tiny_path) as llm:
        asked = [{"max_tokens": 12, "seed": 5, "ignore_eos": True, **kind} for kind in kinds]
        alone = [llm.generate(PROMPT, **fields) for fields in asked]
        for order in (asked, asked[::-1]):
            streams = [llm.stream(PROMPT, **fields) for fields in order]
            texts = ["".join(pieces) for pieces in zip_longest_text(streams)]
            assert texts == [answer.text for answer in (alone if order is asked else alone[::-1])]


def zip_longest_text(streams: list[Any]) -> list[list[str]]:
    """Reads streams in turns, so that all run in the same steps."""
    pieces: list[list[str]] = [[] for _ in streams]
    left = dict(enumerate(map(iter, streams)))
    while left:
        for number, stream in list(left.items()):
            piece = next(stream, None)
            if piece is None:
                del left[number]
            else:
                pieces[number].append(piece)
    return pieces


ASKED: list[dict[str, Any]] = [
    {"prompt": [60 + i % 50 for i in range(150)], "max_tokens": 30, "echo": True, "logprobs": 2},
    {"prompt": [60 + i % 40 for i in range(150)], "max_tokens": 0, "echo": True, "logprobs": 1},
    {"prompt": PROMPT, "max_tokens": 60, "bad_words": ["e", "the"], "min_tokens": 50, "logit_bias": {"2": 50}},
    {"prompt": PROMPT, "max_tokens": 60, "allowed_token_ids": list(range(70, 90)), "repetition_penalty": 1.4},
    {"prompt": PROMPT, "max_tokens": 20, "best_of": 4, "n": 2, "prompt_logprobs": 1, "frequency_penalty": 1.0},
]


def test_fields_mean_the_same_through_crashes(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts in chunks of 16: engines die while prompts are scored, and while rules look at what was said."""
    engine = EngineConfig(
        model=ModelConfig(path=str(tiny_path), name="tiny"),
        kv=KVConfig(size_tokens=8192),
        scheduler=SchedulerConfig(max_num_batched_tokens=16),
    )
    answers = []
    for kills in ("", "kill@life=0,step=4;segv@life=1,step=9;kill@life=2,step=8;kill@life=3,step=30"):
        monkeypatch.setenv(faults.VARIABLE, kills)
        with serving(Serve(engine, ServerConfig(port=0))) as server:
            found = [server.complete(seed=7, temperature=1.2, **fields) for fields in ASKED]
            assert server.metric("octavo_engine_restarts_total") == kills.count("life")
        answers.append([(body["choices"], body["usage"]["completion_tokens"]) for body in found])
    assert answers[0] == answers[1]
