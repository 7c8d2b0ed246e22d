"""What `octavo doctor` says of a model: all that is in its files, all that is wrong, and what would be chosen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.cli.model_facts import as_json, lines, model_facts
from octavo.config import EngineConfig, ExecutionConfig, KVConfig, ModelConfig
from octavo.models.safetensors import read_safetensors
from tests.support.hub import Machine, fake_hub
from tests.support.quantised import awq, write_quantised
from tests.support.tiny import Tiny, write_gguf, write_hf, write_safetensors

TINY = Tiny(max_context=64)
ENGINE = EngineConfig(kv=KVConfig(size_tokens=256))


def facts_of(path: Path, engine: EngineConfig = ENGINE) -> dict[str, Any]:
    """The JSON, which must be JSON; the lines must be lines."""
    facts = model_facts(path, engine)
    assert all("\n" not in line and len(line) < 1200 for line in lines(facts))
    content: dict[str, Any] = json.loads(json.dumps(as_json(facts)))
    return content


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo.cli.main", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_gguf_file_is_described_to_the_last_tensor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY, "Q8_0").path
    facts = facts_of(path)
    assert facts["starts"] and facts["refusal"] is None and facts["kind"] == "GGUF, 1 file"
    assert facts["architecture"] == "llama" and facts["spec"]["layers"] == TINY.layers
    types = {row["type"]: row for row in facts["types"]}
    assert types["Q8_0"]["tensors"] == 1 + 7 * TINY.layers and types["F32"]["tensors"] == 1 + 2 * TINY.layers
    assert types["Q8_0"]["bytes"] == types["Q8_0"]["values"] // 32 * 34
    assert facts["parameters"] == sum(row["values"] for row in types.values())
    assert facts["tensors"] == {"missing": [], "unknown": [], "misshapen": []}
    assert facts["tokeniser"]["template"] == "renders" and facts["tokeniser"]["eos"] == ["2 '<|im_end|>'"]
    assert facts["plan"]["kinds"] == {"q8_0": 1 + 7 * TINY.layers, "vector": 1 + 2 * TINY.layers}
    assert facts["plan"]["budget"]["kv_tokens"] == 256 and list(facts["plan"]["kv_groups"]) == ["full"]
    assert facts["spec"]["ropes"] == [{"kind": "default", "dimensions": 16, "scale": 1.0}]


def test_a_directory_is_described_as_its_own_files_name_things(tmp_path: Path) -> None:
    facts = facts_of(write_hf(tmp_path / "m", TINY, "BF16", shards=3).path)
    assert facts["starts"] and facts["kind"] == "safetensors, 3 files" and facts["architecture"] == "LlamaForCausalLM"
    assert [row["type"] for row in facts["types"]] == ["BF16"]
    assert facts["tokeniser"]["kind"] == "byte-level BPE"


def test_a_quantised_directory_is_told_in_its_own_types_and_as_a_model(tmp_path: Path) -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    engine = EngineConfig(kv=KVConfig(size_tokens=256), execution=ExecutionConfig(backend="reference"))
    facts = facts_of(write_quantised(tmp_path / "m", awq(), config, TINY).path, engine)
    assert facts["starts"], facts["refusal"]
    assert {row["type"] for row in facts["types"]} == {"I32", "F16", "F32"}
    assert facts["tensors"] == {"missing": [], "unknown": [], "misshapen": []}
    assert facts["parameters"] == facts_of(write_hf(tmp_path / "plain", TINY).path)["parameters"]


def test_every_tensor_that_is_missing_wrong_or_unknown_is_named(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m", TINY).path
    tensors = {
        name: np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
        for name, tensor in read_safetensors(folder / "model.safetensors").items()
    }
    gone = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
    for name in gone:
        del tensors[name]
    wrong = "model.layers.1.self_attn.o_proj.weight"
    tensors[wrong] = tensors[wrong][:, :32]
    tensors["model.extra"] = np.zeros(3, np.float32)
    write_safetensors(folder / "model.safetensors", tensors)
    facts = facts_of(folder)
    assert not facts["starts"] and facts["plan"] is None and "lacks 3 tensors" in facts["refusal"]
    assert sorted(facts["tensors"]["missing"]) == gone and facts["tensors"]["unknown"] == ["model.extra"]
    assert facts["tensors"]["misshapen"] == [f"{wrong} [64, 32] instead of [64, 64]"]


def test_an_architecture_that_is_not_supported_is_told_with_what_the_file_holds(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m", TINY).path
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    facts = facts_of(folder)
    assert not facts["supported"] and "MambaForCausalLM is not supported; supported: " in facts["refusal"]
    assert facts["types"][0]["type"] == "F32" and facts["tokeniser"]["tokens"] > 256


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m", TINY, shards=2).path
    (folder / "model-00002-of-00002.safetensors").unlink()
    facts = facts_of(folder)
    assert "lacks model-00002-of-00002.safetensors" in facts["refusal"] and facts["spec"]["layers"] == TINY.layers
    (tmp_path / "x.gguf").write_bytes(b"nothing at all, and long enough")
    assert facts_of(tmp_path / "x.gguf")["kind"] == "unknown"
    (tmp_path / "empty").mkdir()
    assert "config.json" in facts_of(tmp_path / "empty")["refusal"]


def test_a_template_that_cannot_be_rendered_is_told_and_no_reason_to_refuse(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m", TINY).path
    (folder / "chat_template.jinja").write_text("{{ raise_exception('never') }}")
    facts = facts_of(folder)
    assert facts["starts"] and facts["tokeniser"]["template"].startswith("broken: ")


def test_engine_options_that_cannot_work_for_this_model_are_a_refusal(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY).path
    facts = facts_of(path, EngineConfig(model=ModelConfig(max_model_len=65), kv=KVConfig(size_tokens=256)))
    assert "--max-model-len 65" in facts["refusal"] and not facts["starts"]


def test_the_exit_status_says_whether_it_would_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    path = write_gguf(tmp_path / "m.gguf", TINY).path
    done = octavo(str(path), "--json", "--kv-tokens", "256")
    assert done.returncode == 0 and json.loads(done.stdout)["model"]["starts"]
    path.write_bytes(path.read_bytes()[:3000])
    done = octavo(str(path), "--json")
    content = json.loads(done.stdout)
    assert done.returncode == 1 and not content["starts"] and "m.gguf" in content["refusal"]
    done = octavo(str(path))
    assert done.returncode == 1 and "REFUSED" in done.stdout and "hf_secret" not in done.stdout


def test_a_model_of_the_hub_is_judged_before_its_download(tmp_path: Path) -> None:
    with fake_hub() as hub:
        machine = Machine(hub, tmp_path)
        folder = write_hf(tmp_path / "m", TINY, shards=2).path
        hub.add_folder("org/m", folder)
        done = machine.octavo("doctor", "org/m", "--json")
        content = json.loads(done.stdout)
        assert done.returncode == 0 and not content["here"] and content["starts"]
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert {row["path"]: row["bytes"] for row in content["model"]["files"]} == sizes
        assert content["model"]["spec"]["layers"] == TINY.layers
        assert set(hub.fetched()) == {"config.json", "model.safetensors.index.json"}
        assert not list((tmp_path / "hf").rglob("refs/*"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
        hub.add_folder("org/mamba", folder)
        done = machine.octavo("doctor", "org/mamba")
        assert done.returncode == 1 and "MambaForCausalLM is not supported" in done.stdout
        assert machine.octavo("doctor", "org/nothing").returncode == 1
