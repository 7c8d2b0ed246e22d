"""What the exactness tests share: the default model, its tokeniser, executors of any configuration, fresh seeds."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.config import (
    EngineConfig,
    ExecutionConfig,
    KVConfig,
    ModelConfig,
    SchedulerConfig,
)
from octavo.execution.executor import LocalExecutor
from octavo.execution.factory import build_executor
from octavo.models.store import default_model
from octavo.models.tokenizer import Tokenizer, load_tokenizer

Build = Callable[..., LocalExecutor]

TEXTS = (
    "The capital of France is",
    "<|im_start|>user\nWrite a haiku about paper.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 1, 2, 3, 5, 8, 13,",
    "世界 is written with two characters; café and naïve hold accents. In 1492,",
)


@pytest.fixture
def rng() -> random.Random:
    """Drawn anew; the seed is printed where the test fails."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def model_path() -> Path:
    return default_model(lambda what, fraction: None)


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return load_tokenizer(model_path)


@pytest.fixture(scope="session")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text, parse_special=True) for text in TEXTS]


def configured(path: Path, **changes: Any) -> EngineConfig:
    """A small engine; `changes` are fields of any part of the configuration."""
    config = EngineConfig(
        model=ModelConfig(path=str(path)),
        kv=KVConfig(size_tokens=4096),
        scheduler=SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=256),
        execution=ExecutionConfig(),
    )
    for name, value in changes.items():
        part = next(p for p in ("model", "kv", "scheduler", "execution") if hasattr(getattr(config, p), name))
        config = replace(config, **{part: replace(getattr(config, part), **{name: value})})
    return config


@pytest.fixture
def build() -> Iterator[Build]:
    """Makes executors that are closed when the test ends."""
    made = []

    def make(path: Path, **changes: Any) -> LocalExecutor:
        made.append(build_executor(configured(path, **changes), lambda what, fraction: None))
        return made[-1]

    yield make
    for executor in made:
        executor.close()
