"""Gemma's own ways: models that read images too, the windows of a file, what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from octavo.models.checkpoint import open_checkpoint
from octavo.models.spec import ModelError
from tests.support import oracle, oracle_gguf
from tests.support.executors import Build
from tests.support.families import GEMMA2, GEMMA3
from tests.support.probe import Probe


def change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_of_a_model_that_reads_images_the_text_is_served(tmp_path: Path, build: Build, rng: random.Random) -> None:
    text = oracle.config_of(GEMMA3).to_dict()
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_index=100,
        boi_token_index=98,
        eoi_token_index=99,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(rng.getrandbits(31))
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    for parameter in model.model.language_model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    oracle.write_tokenizer(tmp_path, oracle.VOCAB)
    executor = build(tmp_path, precision="float32", max_num_seqs=64)
    tokens = [rng.randrange(98) for _ in range(40)]
    got, expected = Probe(executor, rng).logits(tokens, 7), oracle.logits(model, tokens)
    assert abs(got - expected).max() < 1e-4
    assert open_checkpoint(tmp_path).notes == (
        "text alone: multi_modal_projector and vision_tower of the files are not read",
    )


@pytest.fixture
def gemma3(tmp_path: Path) -> Path:
    oracle.save(oracle.build(GEMMA3, 0), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"layer_types": ["sliding_attention"] * 3}, "a list of 4 of sliding_attention or full_attention"),
        ({"layer_types": ["chunked_attention"] * 4}, "a list of 4 of sliding_attention or full_attention"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}}, "rope_type 'yarn'"),
    ],
)
def test_what_changes_results_and_is_not_there_is_refused(gemma3: Path, changes: dict[str, Any], message: str) -> None:
    change(gemma3, **changes)
    with pytest.raises(ModelError, match=message):
        open_checkpoint(gemma3)


def test_null_is_no_cap_and_absence_is_gemma_2s_own(tmp_path: Path) -> None:
    oracle.save(oracle.build(GEMMA2, 0), tmp_path)
    change(tmp_path, attn_logit_softcapping=None)
    spec = open_checkpoint(tmp_path).spec
    assert (spec.attn_softcap, spec.logit_softcap) == (None, 3.0)
    path = tmp_path / "config.json"
    kept = {key: value for key, value in json.loads(path.read_text()).items() if "softcapping" not in key}
    path.write_text(json.dumps(kept))
    spec = open_checkpoint(tmp_path).spec
    assert (spec.attn_softcap, spec.logit_softcap) == (50.0, 30.0)


def windows(path: Path) -> list[bool]:
    return [layer.window is not None for layer in open_checkpoint(path).spec.layer_specs]


def test_a_gguf_files_windows_follow_its_pattern_or_the_familys(tmp_path: Path) -> None:
    """One flag a layer, a period, or neither; without a window there is none."""
    model = oracle.build(GEMMA3.with_(num_hidden_layers=7, sliding_window_pattern=6), 0)
    every_sixth = [i != 5 for i in range(7)]
    for extra, expected in (
        ({}, every_sixth),
        ({"attention.sliding_window_pattern": 3}, [i not in (2, 5) for i in range(7)]),
        ({"attention.sliding_window_pattern": [True, False, True, True, False, False, True]}, None),
        ({"attention.sliding_window": 0}, [False] * 7),
    ):
        path = tmp_path / "model.gguf"
        oracle_gguf.write(model, path, extra=extra)
        assert windows(path) == (expected or extra["attention.sliding_window_pattern"])
    oracle_gguf.write(model, path, extra={"attention.sliding_window_pattern": [True]})
    with pytest.raises(ModelError, match="holds 1 flags for 7 layers"):
        open_checkpoint(path)
