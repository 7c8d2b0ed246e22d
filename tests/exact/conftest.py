"""What the exactness tests share: the default model, its tokeniser, executors of any configuration, fresh seeds."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.execution.executor import LocalExecutor
from octavo.execution.factory import build_executor
from octavo.models.store import default_model
from octavo.models.tokenizer import Tokenizer, load_tokenizer
from tests.support.executors import Build, configured

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


@pytest.fixture(scope="session")
def shared(model_path: Path) -> Iterator[LocalExecutor]:
    """The default model in a small engine, for tests that need no configuration of their own."""
    executor = build_executor(configured(model_path, max_num_batched_tokens=640), lambda what, fraction: None)
    yield executor
    executor.close()
