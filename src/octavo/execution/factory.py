"""Makes the executor: opens the model, resolves the configuration against it and the machine, loads the weights.

Called once, in the process that will run the steps. Nothing downstream chooses again: what is returned carries the
resolved configuration and the lines to print at start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Budget, EngineConfig, Facts, explain, resolve
from ..models.checkpoint import open_checkpoint
from ..models.spec import Checkpoint, ModelSpec
from ..models.store import cache_dir, default_model
from ..types import KVGroupSpec, ModelInfo
from . import machine
from .executor import LocalExecutor
from .forward import Forward

if TYPE_CHECKING:
    from ..ops.cpu.packing import ArenaPlan

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Loaded:
    """What a back end's loader hands over."""

    config: EngineConfig
    budget: Budget
    weights_bytes: int
    num_blocks: tuple[int, ...]
    forward: Forward
    lines: tuple[str, ...]
    """Report lines of the back end."""


def build_executor(config: EngineConfig, progress: Progress) -> LocalExecutor:
    """Raises ConfigError or ModelError with one sentence for the user."""
    path = Path(config.model.path) if config.model.path else default_model(progress)
    progress("opening the model", None)
    checkpoint = open_checkpoint(path)
    try:
        checkpoint.sources()
        load = _load_reference if config.execution.backend == "reference" else _load_cpu
        loaded = load(config, checkpoint, progress)
        info = _info(loaded, checkpoint)
    finally:
        checkpoint.close()
    report = (*explain(loaded.config, loaded.budget), *loaded.lines)
    return LocalExecutor(loaded.config, info, loaded.num_blocks, report, loaded.forward)


def plan_resources(config: EngineConfig) -> tuple[ModelSpec, EngineConfig, Budget]:
    """What `build_executor` would settle on for the CPU back end, without loading weights."""
    checkpoint = open_checkpoint(Path(config.model.path))
    try:
        spec = checkpoint.spec
        return spec, *_resolve_cpu(config, checkpoint)[1:]
    finally:
        checkpoint.close()


def kv_groups(spec: ModelSpec, bytes_per_token: int) -> tuple[KVGroupSpec, ...]:
    layers = tuple(range(spec.layers))
    return (KVGroupSpec(name="full", kind="full", layers=layers, bytes_per_token=bytes_per_token),)


def numerics_id(config: EngineConfig, spec: ModelSpec) -> str:
    """Every choice that may change bits; never the instruction set, the threads or the load."""
    return (
        f"{config.execution.backend}/1 {config.model.precision} kv-{config.model.precision} "
        f"attention-{config.execution.attention} tile-32 partition-512 expanded rope-{spec.rope_theta!r}"
    )


def _load_cpu(config: EngineConfig, checkpoint: Checkpoint, progress: Progress) -> Loaded:
    from ..ops.cpu.packing import open_arena
    from .cpu import CpuForward

    spec = checkpoint.spec
    plan, resolved, budget = _resolve_cpu(config, checkpoint)
    per_token = _cpu_kv_bytes(config, spec)
    arena = open_arena(
        plan,
        checkpoint.weights_id(),
        checkpoint.tensors,
        cache_dir() / "packed",
        progress,
    )
    groups = kv_groups(spec, per_token)
    num_blocks = _num_blocks(resolved)
    forward = CpuForward(resolved, spec, checkpoint.num_tokens, arena, groups, num_blocks)
    lines = [_kernels_line(resolved)]
    if note := plan.rounding():
        lines.append(f"numbers    {note}")
    if arena.problem:
        lines.append(f"cache      packed weights are kept in memory alone: {arena.problem}")
    return Loaded(resolved, budget, plan.size, num_blocks, forward, tuple(lines))


def _resolve_cpu(config: EngineConfig, checkpoint: Checkpoint) -> tuple[ArenaPlan, EngineConfig, Budget]:
    from octavo import _native

    from ..ops.cpu.packing import plan_arena

    plan = plan_arena(checkpoint.sources(), config.model.precision)
    per_token = _cpu_kv_bytes(config, checkpoint.spec)
    facts = _facts(checkpoint.spec, per_token, plan.size, _native.cpu_count(), tuple(_native.isas()))
    return plan, *resolve(config, facts)


def _cpu_kv_bytes(config: EngineConfig, spec: ModelSpec) -> int:
    from octavo import _native

    float32 = config.model.precision == "float32"
    return _native.KVPool.bytes_per_token(spec.layers, spec.kv_heads, spec.head_dim, float32)


def _load_reference(config: EngineConfig, checkpoint: Checkpoint, progress: Progress) -> Loaded:
    from .reference import ReferenceForward

    spec = checkpoint.spec
    per_token = 2 * spec.layers * spec.kv_heads * spec.head_dim * 4
    weights = 4 * sum(_product(shape) for _, shape in checkpoint.sources().values())
    # The NumPy back end has no instruction sets or threads of its own to choose.
    resolved, budget = resolve(
        replace(config, execution=replace(config.execution, isa=None)),
        _facts(spec, per_token, weights, machine.cpu_count(), ("numpy",)),
    )
    num_blocks = _num_blocks(resolved)
    forward = ReferenceForward(resolved, checkpoint, kv_groups(spec, per_token), num_blocks, progress)
    return Loaded(
        resolved,
        budget,
        weights,
        num_blocks,
        forward,
        ("kernels    NumPy reference (slow)",),
    )


def _facts(spec: ModelSpec, kv_bytes: int, weights_bytes: int, cpus: int, isas: tuple[str, ...]) -> Facts:
    qkv = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    floats = spec.hidden + qkv + 2 * spec.intermediate
    rounded = spec.hidden + 2 * spec.heads * spec.head_dim + spec.intermediate
    return Facts(
        max_context=spec.max_context,
        kv_bytes_per_token=kv_bytes,
        weights_bytes=weights_bytes,
        row_bytes=4 * (floats + rounded),
        vocab=spec.vocab,
        available_bytes=machine.available_bytes(),
        cpus=cpus,
        isas=isas,
    )


def _num_blocks(config: EngineConfig) -> tuple[int, ...]:
    assert config.kv.size_tokens is not None
    return (config.kv.size_tokens // config.kv.block_size,)


def _kernels_line(config: EngineConfig) -> str:
    execution = config.execution
    threads = f"{execution.threads} thread{'' if execution.threads == 1 else 's'}"
    program = "" if execution.program else ", one call an op"
    return f"kernels    {execution.isa}, {threads}, {execution.attention} attention, {config.model.precision}{program}"


def _info(loaded: Loaded, checkpoint: Checkpoint) -> ModelInfo:
    spec, config = checkpoint.spec, loaded.config
    assert config.kv.size_bytes is not None and config.kv.size_tokens is not None
    return ModelInfo(
        name=config.model.name or checkpoint.name,
        architecture=spec.architecture,
        vocab_size=spec.vocab,
        num_tokens=checkpoint.num_tokens,
        max_context=spec.max_context,
        eos_token_ids=checkpoint.eos_token_ids,
        kv_groups=kv_groups(spec, config.kv.size_bytes // config.kv.size_tokens),
        weights_id=checkpoint.weights_id(),
        numerics_id=numerics_id(config, spec),
        weights_bytes=loaded.weights_bytes,
    )


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
