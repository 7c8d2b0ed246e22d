"""Every pair of techniques that is not refused runs and gives the right answers; the table in docs is current."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.compatibility import Pair, Technique, base, lines, pairs
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.execution.factory import build_executor
from octavo.kvcache.tiers.disk import open_tier
from octavo.types import NewRequest, SamplingParams
from tests.support.tiny import Tiny, write_hf

PREFIX = 530
PAIRS = pairs()
ALLOWED = [pair for pair in PAIRS if pair.refusal is None]
REFUSED = [pair for pair in PAIRS if pair.refusal is not None]
Answers = dict[int, tuple[tuple[int, ...], tuple[float, ...]]]


def _name(pair: Pair) -> str:
    return f"{pair.one.name}+{pair.two.name}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """By whether the layers have windows: the same weights."""
    found = {}
    for window in (False, True):
        path = write_hf(tmp_path_factory.mktemp("models") / f"tiny{window:d}", Tiny(max_context=640, tied=False)).path
        if window:
            config = json.loads((path / "config.json").read_text())
            config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 40}
            (path / "config.json").write_text(json.dumps(config))
        found[window] = path
    return found


@pytest.fixture(scope="module")
def known() -> dict[tuple[Any, ...], Answers]:
    return {}


def test_the_table_in_docs_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "compatibility.md"
    assert page.read_text() == "\n".join(lines()) + "\n", "octavo doctor --compatibility > docs/compatibility.md"


def test_refusals_name_a_setting_that_would_work() -> None:
    assert REFUSED
    for pair in REFUSED:
        assert pair.refusal is not None and "--" in pair.refusal, pair


@pytest.mark.parametrize("pair", ALLOWED, ids=_name)
def test_two_settings_together_give_the_answers_of_neither(
    pair: Pair, models: dict[bool, Path], known: dict[tuple[Any, ...], Answers], tmp_path: Path
) -> None:
    """Answers are those of the settings that may change bits, alone; the reference's are near, not equal."""
    windowed = bool(pair.one.window or pair.two.window)
    numerics = [one for one in (pair.one, pair.two) if one.numerics]
    key = (windowed, *[one.name for one in numerics])
    if key not in known:
        known[key] = _answers(_config(numerics, models[windowed], tmp_path))
    got = _answers(_config([pair.one, pair.two], models[windowed], tmp_path))
    assert got.keys() == known[key].keys()
    if any(one.name == "reference" for one in numerics):
        assert all(len(tokens) == len(known[key][i][0]) for i, (tokens, _) in got.items())
    else:
        assert got == known[key]


@pytest.mark.parametrize("pair", REFUSED, ids=_name)
def test_a_refused_pair_is_refused_at_start(pair: Pair, models: dict[bool, Path], tmp_path: Path) -> None:
    config = _config([pair.one, pair.two], models[bool(pair.one.window or pair.two.window)], tmp_path)
    with pytest.raises(ValueError, match="--"):
        build_executor(config, lambda what, fraction: None).close()


def _config(techniques: list[Technique], path: Path, directory: Path) -> EngineConfig:
    config = base()
    for technique in techniques:
        config = technique.change(config)
    if config.kv.disk is not None:
        config = replace(config, kv=replace(config.kv, disk=str(directory / "kv"), disk_bytes=64 << 20))
    return replace(config, model=replace(config.model, path=str(path)), validate_kv=True)


def _answers(config: EngineConfig) -> Answers:
    """Three requests on one prefix, one with two choices; a second wave comes while the first decodes."""
    executor = build_executor(config, lambda what, fraction: None)
    core = EngineCore(executor.config, executor, tier=open_tier(executor.config.kv, executor.info, executor.pages))
    try:
        prefix = [(7 * i) % 250 + 3 for i in range(PREFIX)]
        params = SamplingParams(max_tokens=6, temperature=0.8, logprobs=1, ignore_eos=True)

        def request(number: int, tail: list[int], choice: int = 0) -> NewRequest:
            return NewRequest(request_id=number, prompt=[*prefix, *tail], params=params, seed=5, choice=choice)

        core.handle(request(1, [20]))
        answers: dict[int, tuple[list[int], list[float]]] = {number: ([], []) for number in (1, 2, 3, 4)}
        steps = 0
        while core.has_work or steps < 3:
            output = core.step()
            for delta in output.deltas if output is not None else ():
                assert delta.error is None, delta.error
                answers[delta.request_id][0].extend(delta.tokens)
                answers[delta.request_id][1].extend(entry.logprob for entry in delta.logprobs or ())
            steps += 1
            if steps == 3:
                core.handle(request(2, [21, 22]))
                core.handle(request(3, [21, 22], 1))
                core.handle(request(4, [30] * 40))
        return {number: (tuple(tokens), tuple(values)) for number, (tokens, values) in answers.items()}
    finally:
        core.close()
        executor.close()
