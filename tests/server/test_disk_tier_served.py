"""`--kv-disk` through HTTP: prompts are found after a restart, and a directory belongs to one engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from octavo.kvcache.tiers.store import RATES
from octavo.llm import LLM
from tests.support.serve import Serve
from tests.support.server import Server, serving
from tests.support.tiny import Tiny, write_hf

PROMPT = "the whole of the tale is told in the hall. " * 8
PIECES = ("hits_total", "tokens_total", "read_bytes_total", "written_bytes_total", "errors_total", "bytes", "on")


def _config(path: Path, disk: Path) -> EngineConfig:
    model = ModelConfig(path=str(path), name="tiny", max_model_len=1024)
    return EngineConfig(model=model, kv=KVConfig(size_tokens=4096, disk=str(disk)), validate_kv=True)


def _ask(server: Server) -> tuple[str, int]:
    answer = server.complete(prompt=PROMPT, max_tokens=8, temperature=0)
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def _metrics(server: Server) -> dict[str, float]:
    return {name: server.metric(f"octavo_kv_disk_{name}") for name in PIECES}


def test_a_prompt_is_found_after_the_server_was_started_again(tmp_path: Path) -> None:
    path, disk = write_hf(tmp_path / "model", Tiny(max_context=1024, tied=False)).path, tmp_path / "kv"
    what = Serve(_config(path, disk), ServerConfig(port=0))
    with serving(what) as server:
        text, cached = _ask(server)
        assert cached == 0
        assert _metrics(server) == {**dict.fromkeys(PIECES, 0.0), "on": 1.0}, "nothing has been evicted"
        with pytest.raises(ValueError, match="in use by another engine"):
            LLM(config=_config(path, disk))
        assert server.stop() == 0
    (disk / RATES).unlink(missing_ok=True)  # a model so small may be computed faster than it is read
    size = sum(file.stat().st_size for file in disk.glob("*.kv"))
    with serving(what) as server:
        again, cached = _ask(server)
        assert again == text and cached >= 96 and cached % 32 == 0
        told = _metrics(server)
        assert (told["hits_total"], told["tokens_total"], told["errors_total"]) == (1, cached, 0)
        assert told["bytes"] == size and 0 < told["read_bytes_total"] < size
        # The second time they are in the pages.
        assert _ask(server) == (text, cached)
        assert server.metric("octavo_kv_disk_hits_total") == 1
        assert server.metric("octavo_cached_prompt_tokens_total") == 2 * cached
