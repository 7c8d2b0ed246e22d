"""One server a module: the echo engine for exact texts, a tiny model for everything else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from octavo.models.tokenizer import Tokenizer, load_tokenizer
from tests.support.serve import Serve
from tests.support.server import Server, echo_config, serving
from tests.support.tiny import Tiny, write_hf


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a small byte-level tokeniser; untied, or it would repeat one token."""
    return write_hf(tmp_path_factory.mktemp("models") / "tiny", Tiny(max_context=512, tied=False)).path


@pytest.fixture(scope="session")
def tokenizer(tiny_path: Path) -> Tokenizer:
    return load_tokenizer(tiny_path)


@pytest.fixture(scope="module")
def echo(tiny_path: Path) -> Iterator[Server]:
    """Repeats its prompt: see tests/support/echo_engine.py."""
    with serving(echo_config(tiny_path)) as server:
        yield server


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Server]:
    """The real engine on the tiny model."""
    engine = EngineConfig(
        model=ModelConfig(path=str(tiny_path), name="tiny"), kv=KVConfig(size_tokens=8192), validate_kv=True
    )
    with serving(Serve(engine, ServerConfig(port=0))) as server:
        yield server
