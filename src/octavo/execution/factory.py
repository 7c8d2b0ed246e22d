"""Makes the executor: opens the model, resolves the configuration against it and the machine, loads the weights.

Called once, in the process that will run the steps. Nothing downstream chooses again: what is returned carries the
resolved configuration and the lines to print at start.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config import Budget, EngineConfig, Facts, KVShape, ModelConfig, PoolSizes, check_choices, explain, resolve
from octavo.execution import machine
from octavo.execution.executor import LocalExecutor
from octavo.execution.forward import Forward
from octavo.execution.structured import JUMP_TOKENS
from octavo.models.checkpoint import open_checkpoint
from octavo.models.packed import note_use
from octavo.models.rope import note as rope_note
from octavo.models.spec import Checkpoint, ModelError, ModelSpec
from octavo.models.store import cache_dir, default_model
from octavo.structure.masker import Masker, MaskerSettings
from octavo.types import KVGroupSpec, ModelInfo, SamplingDefaults

if TYPE_CHECKING:
    from octavo.ops.cpu.packing import ArenaPlan

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Plan:
    """What a model would take of this machine, and the configuration that follows."""

    config: EngineConfig
    budget: Budget
    groups: tuple[KVGroupSpec, ...]
    arena: ArenaPlan | None
    """None on the reference back end."""
    sampling: SamplingDefaults


def build_executor(config: EngineConfig, progress: Progress) -> LocalExecutor:
    """Raises ConfigError or ModelError with one sentence for the user."""
    path = Path(config.model.path) if config.model.path else default_model(progress)
    progress("opening the model", None)
    checkpoint = open_checkpoint(path)
    try:
        plan = _plan(config, checkpoint)
        num_blocks = _num_blocks(plan)
        forward, lines = _load(plan, checkpoint, num_blocks, progress)
        if note := rope_note(checkpoint.spec, plan.config.model.max_model_len or checkpoint.spec.max_context):
            lines.append(f"positions  {note}")
        info = _info(plan, checkpoint)
        lines += [f"note       {note}" for note in checkpoint.notes]
        lines += sampling_lines(plan.sampling)
    finally:
        checkpoint.close()
    report = (*explain(plan.config, plan.budget), *lines)
    return LocalExecutor(plan.config, info, num_blocks, report, forward, make_masker(plan.config, path, info))


def make_masker(config: EngineConfig, path: Path, info: ModelInfo) -> Masker | None:
    """What computes masks of structured outputs, which starts with the first; None where they are switched off."""
    if not config.execution.structured_outputs:
        return None
    rows = config.scheduler.max_num_seqs
    ahead = JUMP_TOKENS if config.execution.jump_forward else 0
    return Masker(MaskerSettings(str(path), info.vocab_size, info.eos_token_ids, rows, ahead))


def plan_resources(config: EngineConfig) -> Plan:
    """The resolved configuration for a model and its memory; loads no weights."""
    checkpoint = open_checkpoint(Path(config.model.path))
    try:
        return _plan(config, checkpoint)
    finally:
        checkpoint.close()


def kv_groups(spec: ModelSpec, layer_bytes: Callable[[int], int]) -> tuple[KVGroupSpec, ...]:
    """Layers that see as far as one another share a group. layer_bytes: bytes a token of so many layers."""
    layers: dict[int | None, list[int]] = {}
    for index, layer in enumerate(spec.layer_specs):
        layers.setdefault(layer.window, []).append(index)
    groups = []
    for window in sorted(layers, key=lambda value: (value is not None, value)):
        members = tuple(layers[window])
        name, kind = ("full", "full") if window is None else (f"window-{window}", "window")
        size = layer_bytes(len(members))
        groups.append(KVGroupSpec(name=name, kind=kind, layers=members, bytes_per_token=size, window=window))
    return tuple(groups)


def _shape(groups: tuple[KVGroupSpec, ...]) -> KVShape:
    full = sum(group.bytes_per_token for group in groups if group.window is None)
    return KVShape(full, tuple((group.window, group.bytes_per_token) for group in groups if group.window is not None))


def numerics_id(config: EngineConfig, spec: ModelSpec) -> str:
    """Every choice that may change bits; never the instruction set, the threads or the load.

    The model's constants (windows, soft caps, scales, rotations at this context) go in as a digest of all of them.
    """
    served = spec.at_context(config.model.max_model_len or spec.max_context)
    ropes = tuple(replace(rope, scaling=None) for rope in served.ropes)
    kinds = "-".join(rope.kind for rope in ropes)
    digest = hashlib.sha256(repr(replace(served, ropes=ropes)).encode()).hexdigest()
    return (
        f"{config.execution.backend}/1 {config.model.precision} kv-{config.model.precision} "
        f"attention-{config.execution.attention} tile-32 partition-512 {config.model.dequantisation} "
        f"rope-{kinds} model-{digest[:16]}"
    )


def _plan(config: EngineConfig, checkpoint: Checkpoint) -> Plan:
    check_choices(config)
    sampling = _sampling(config, checkpoint)
    spec, sources = checkpoint.spec, checkpoint.sources()
    if config.execution.backend == "reference":
        groups = kv_groups(spec, lambda layers: 2 * layers * spec.kv_heads * spec.head_dim * 4)
        weights = 4 * sum(math.prod(shape) for _, shape in sources.values())
        # NumPy has no instruction sets of ours to choose between.
        config = replace(config, execution=replace(config.execution, isa=None))
        resolved, budget = resolve(config, _facts(spec, groups, weights, machine.cpu_count(), ("numpy",)))
        return Plan(resolved, budget, groups, None, sampling)
    from octavo import _native
    from octavo.ops.cpu.packing import plan_arena

    arena = plan_arena(sources, config.model.precision)
    float32 = config.model.precision == "float32"
    bytes_per_token = _native.KVPool.bytes_per_token
    groups = kv_groups(spec, lambda layers: bytes_per_token(layers, spec.kv_heads, spec.head_dim, float32))
    resolved, budget = resolve(config, _facts(spec, groups, arena.size, _native.cpu_count(), tuple(_native.isas())))
    return Plan(resolved, budget, groups, arena, sampling)


def _load(
    plan: Plan,
    checkpoint: Checkpoint,
    num_blocks: tuple[int, ...],
    progress: Progress,
) -> tuple[Forward, list[str]]:
    """The back end's forward pass, and its lines of the report."""
    if plan.arena is None:
        from octavo.execution.reference import ReferenceForward

        return ReferenceForward(plan.config, checkpoint, plan.groups, num_blocks, progress), ["kernels    NumPy (slow)"]
    from octavo.execution.cpu import CpuForward
    from octavo.ops.cpu.packing import layout_id, open_arena

    # The float32 form is for checking, and eight times the file's size: not worth the disk.
    directory = cache_dir() / "packed" if plan.config.model.precision == "bf16" else None
    weights_id = checkpoint.weights_id()
    arena = open_arena(plan.arena, weights_id, checkpoint.tensors, directory, progress)
    if checkpoint.weights_id() != weights_id:
        # Kept, it would be taken for the packed form of files that it was not made of.
        if arena.path is not None and arena.origin == "packed":
            arena.path.unlink(missing_ok=True)
        raise ModelError("the model's files changed while they were loaded: start again once they are complete")
    if arena.path is not None:
        note_use(arena.path, plan.config.model.name or checkpoint.name, plan.config.model.path, layout_id())
    forward = CpuForward(plan.config, checkpoint.spec, checkpoint.num_tokens, arena, plan.groups, num_blocks)
    lines = [_kernels_line(plan.config)]
    if note := plan.arena.rounding(plan.config.model.dequantisation):
        lines.append(f"numbers    {note}")
    if arena.problem:
        lines.append(f"cache      packed weights are kept in memory alone: {arena.problem}")
    return forward, lines


def _facts(
    spec: ModelSpec, groups: tuple[KVGroupSpec, ...], weights_bytes: int, cpus: int, isas: tuple[str, ...]
) -> Facts:
    qkv = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    floats = spec.hidden + qkv + 2 * spec.intermediate
    rounded = spec.hidden + 2 * spec.heads * spec.head_dim + spec.intermediate
    return Facts(
        max_context=spec.max_context,
        kv=_shape(groups),
        weights_bytes=weights_bytes,
        row_bytes=4 * (floats + rounded),
        vocab=spec.vocab,
        available_bytes=machine.available_bytes(),
        cpus=cpus,
        isas=isas,
    )


def _num_blocks(plan: Plan) -> tuple[int, ...]:
    """Blocks of each group's pool."""
    config = plan.config
    assert config.kv.size_tokens is not None
    sizes = PoolSizes(_shape(plan.groups), config.scheduler, config.kv.block_size)
    return tuple(sizes.blocks(config.kv.size_tokens, group.window) for group in plan.groups)


def _kernels_line(config: EngineConfig) -> str:
    execution = config.execution
    threads = f"{execution.threads} thread{'' if execution.threads == 1 else 's'}"
    program = "" if execution.program else ", one call an op"
    return f"kernels    {execution.isa}, {threads}, {execution.attention} attention, {_numbers(config.model)}{program}"


def _numbers(model: ModelConfig) -> str:
    products = "" if model.dequantisation == "expanded" else f", {model.dequantisation} products"
    return f"{model.precision}{products}"


def _info(plan: Plan, checkpoint: Checkpoint) -> ModelInfo:
    spec = checkpoint.spec
    return ModelInfo(
        name=plan.config.model.name or checkpoint.name,
        architecture=spec.architecture,
        vocab_size=spec.vocab,
        num_tokens=checkpoint.num_tokens,
        hidden_size=spec.hidden,
        max_context=spec.max_context,
        eos_token_ids=checkpoint.eos_token_ids,
        kv_groups=plan.groups,
        weights_id=checkpoint.weights_id(),
        tokenizer_id=checkpoint.tokenizer_id(),
        numerics_id=numerics_id(plan.config, spec),
        weights_bytes=plan.budget.weights,
        sampling=plan.sampling,
    )


def _sampling(config: EngineConfig, checkpoint: Checkpoint) -> SamplingDefaults:
    return checkpoint.sampling() if config.model.generation_config == "model" else SamplingDefaults()


def sampling_lines(defaults: SamplingDefaults) -> list[str]:
    """What a request gets that leaves sampling to us; no line where that is the API's own defaults."""
    values = ", ".join(f"{name} {value:g}" for name, value in defaults.chosen().items())
    return [f"sampling   {values} where a request leaves them out ({defaults.source})"] if values else []
