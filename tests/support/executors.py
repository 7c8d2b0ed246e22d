"""Configurations and executors for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig, ExecutionConfig, KVConfig, ModelConfig, SchedulerConfig
from octavo.execution.executor import LocalExecutor

PARTS = ("model", "kv", "scheduler", "execution", "speculative")
Build = Callable[..., LocalExecutor]
"""(path, **fields of any part of the configuration) -> an executor that is closed when the test ends."""


def configured(path: Path, **changes: Any) -> EngineConfig:
    """A small engine; `changes` are fields of any part of the configuration."""
    config = EngineConfig(
        model=ModelConfig(path=str(path)),
        kv=KVConfig(size_tokens=4096),
        scheduler=SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=256),
        execution=ExecutionConfig(),
    )
    for name, value in changes.items():
        part = next(p for p in PARTS if hasattr(getattr(config, p), name))
        config = replace(config, **{part: replace(getattr(config, part), **{name: value})})
    return config
