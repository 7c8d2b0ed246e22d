"""`octavo verify` finds every cell equal on a small model, and says where two answers differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.verify import run_verify
from octavo.config import EngineConfig, KVConfig, ModelConfig
from octavo.types import TokenLogprobs
from octavo.verify.matrix import verify
from octavo.verify.work import Answer, first_difference
from tests.support.attention import ISAS
from tests.support.tiny import Tiny, write_hf


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    path = write_hf(tmp_path_factory.mktemp("models") / "tiny", Tiny(max_context=1200, tied=False)).path
    return EngineConfig(model=ModelConfig(path=str(path)), kv=KVConfig(size_tokens=8192))


def test_no_cell_differs_on_any_instruction_set(config: EngineConfig, tmp_path: Path) -> None:
    lines: list[str] = []
    report = verify(config, True, 7, lines.append, tuple(ISAS))
    assert report.equal, "\n".join(lines)
    missed = [cell for cell in report.cells if cell.result != "equal"]
    assert not missed, "\n".join(lines)
    assert {cell.arm.split(",")[0] for cell in report.cells} == set(ISAS)


def test_the_command_writes_json_and_says_one_line_a_cell(config: EngineConfig, tmp_path: Path) -> None:
    lines: list[str] = []
    assert run_verify(config, True, None, str(tmp_path / "out.json"), lines.append)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["equal"] and len(lines) == len(found["cells"]) + 2
    assert "0 differ, 0 not reached" in lines[-1], "\n".join(lines)
    assert f"{len(found['cells'])} cells" in lines[0]


def test_a_difference_names_request_position_and_bits() -> None:
    one = Answer([5, 6], [TokenLogprobs(-1.0, [5], [-1.0]), TokenLogprobs(-2.0, [6], [-2.0])])
    two = Answer([5, 6], [TokenLogprobs(-1.0, [5], [-1.0]), TokenLogprobs(-2.0000002, [6], [-2.0])])
    found = first_difference("long", 2, one, two)
    assert found is not None
    assert (found.request, found.choice, found.position) == ("long", 2, 1)
    assert found.text() == (
        "long, choice 2, position 1: expected token 6 c0000000 [6:c0000000], got token 6 c0000001 [6:c0000000]"
    )
    shorter = first_difference("long", 0, one, Answer([5], one.logprobs[:1]))
    assert shorter is not None and shorter.got == "nothing"
    assert first_difference("long", 0, one, one) is None
