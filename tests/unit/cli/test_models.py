"""What `octavo models` lists and removes, over real downloads and real packed weights."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.cli.models import Selection, remove, show
from octavo.config import ConfigError, EngineConfig, KVConfig
from octavo.models import packed
from octavo.models.packed import packed_weights
from octavo.models.spec import ModelError
from tests.support.hub import Machine, fake_hub
from tests.support.tiny import Tiny, write_gguf, write_hf

TINY = Tiny(max_context=64)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with fake_hub() as hub:
        yield Machine(hub, tmp_path)


def listed(machine: Machine) -> dict[str, Any]:
    done = machine.octavo("models", "--json")
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def test_models_of_the_hub_are_listed_and_removed_by_name(machine: Machine, tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m", TINY).path
    gguf = write_gguf(tmp_path / "m.gguf", TINY, "Q8_0").path.read_bytes()
    machine.hub.add("org/m", {"a.gguf": gguf, "b.gguf": gguf[:-1]}, revisions=("v1",))
    machine.hub.add_folder("org/m", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    machine.hub.add_folder("org/other", folder)
    machine.fetch("org/m", "org/other", "hf:org/m@v1:a.gguf")
    hub = {row["name"].split("@")[0] + row["name"][len("hf:org/m@") + 40 :]: row for row in listed(machine)["hub"]}
    assert hub["hf:org/m"]["supported"] and hub["hf:org/m"]["revisions"] == ["main"]
    assert hub["hf:org/m:a.gguf"]["bytes"] == len(gguf) and hub["hf:org/m:a.gguf"]["architecture"] == "llama"
    assert [row["supported"] for name, row in hub.items() if name.startswith("hf:org/other")] == [False]
    shown = machine.octavo("models").stdout
    assert "org/m:a.gguf" in shown and "1 of other kinds (MambaForCausalLM)" in shown
    assert "--yes would work" in machine.octavo("models", "rm", "org/m").stderr

    assert "freed" in machine.octavo("models", "rm", "hf:org/m@v1:a.gguf", "--yes").stdout
    assert machine.fetch("org/m", HF_HUB_OFFLINE="1")[0].startswith("refused")
    assert [row["name"][:8] for row in listed(machine)["hub"]] == ["hf:org/m", "hf:org/o"]
    assert machine.octavo("models", "rm", "org/m", "org/other", "--yes").returncode == 0
    assert listed(machine)["hub"] == []
    assert not list((tmp_path / "hf" / "hub").glob("models--*"))
    assert "is not in the cache" in machine.octavo("models", "rm", "org/m", "--yes").stderr


def test_content_that_another_revision_shares_stays(machine: Machine, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "m.gguf", TINY, "Q8_0").path.read_bytes()
    machine.hub.add("org/m", {"a.gguf": gguf}, revisions=("v1",))
    machine.hub.add("org/m", {"a.gguf": gguf, "a.jinja": b"{{ messages }}"})
    first, second = machine.fetch("hf:org/m@v1", "org/m")
    assert machine.octavo("models", "rm", "org/m@v1", "--yes").returncode == 0
    assert not Path(first).exists() and Path(second).read_bytes() == gguf


def said(selection: Selection) -> str:
    """What `octavo models rm --yes` says."""
    lines: list[str] = []
    remove(selection, lines.append, lambda question: True)
    return "\n".join(lines)


def test_packed_weights_go_by_age_by_model_and_by_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    gguf = write_gguf(tmp_path / "m.gguf", TINY, "Q8_0").path
    LLM(gguf, config=EngineConfig(kv=KVConfig(size_tokens=64))).close()
    (arena,) = packed_weights()
    assert arena.model == "m" and arena.source == str(gguf) and arena.bytes == arena.path.stat().st_size
    assert said(Selection(unused_days=1)) == said(Selection(stale=True)) == "nothing to remove"
    old = time.time() - 2 * 86400
    os.utime(arena.path.with_suffix(".json"), (old, old))
    shown: list[str] = []
    show(shown.append)
    assert any("used 2 days ago" in line for line in shown)
    foreign = arena.path.with_name("0" * 32 + ".arena")
    foreign.write_bytes(b"another build's")
    packed.note_use(foreign, "m", str(gguf), "00ff")
    assert said(Selection(stale=True, unused_days=1)) == "nothing to remove"
    assert said(Selection(stale=True)).endswith("freed") and [one.path for one in packed_weights()] == [arena.path]
    foreign.write_bytes(b"")
    assert said(Selection(unused_days=1)).startswith("packed weights of m, ")
    assert [one.path for one in packed_weights()] == [foreign]
    assert said(Selection(packed=True)).endswith("freed") and packed_weights() == []
    LLM(gguf, config=EngineConfig(kv=KVConfig(size_tokens=64))).close()
    assert said(Selection(("m",))).endswith("freed") and packed_weights() == [], (
        "a name that the list shows is one to remove"
    )
    with pytest.raises(ModelError, match="delete it yourself"):
        said(Selection((str(gguf),)))
    with pytest.raises(ConfigError, match="needs a NAME"):
        said(Selection())


def test_an_engine_that_has_the_weights_mapped_is_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "m.gguf", TINY, "Q8_0").path
    config = EngineConfig(kv=KVConfig(size_tokens=256))
    with LLM(path, config=config) as llm:
        before = llm.generate("abc", temperature=0, max_tokens=8).tokens
        (arena,) = packed_weights()
        assert packed.remove(arena) and packed_weights() == []
        assert llm.generate("abc", temperature=0, max_tokens=8).tokens == before
    with LLM(path, config=config) as again:
        assert again.generate("abc", temperature=0, max_tokens=8).tokens == before
        assert len(packed_weights()) == 1
