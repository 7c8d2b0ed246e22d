"""The forward pass on the native back end: one recorded program, replayed every step.

Owns the packed weights, the pages and the program with its threads. Life: recorded once for the configured limits;
`run` copies a step's inputs into the program's batch and replays it; `close` ends the threads.
Off switches: `ExecutionConfig.program` (one native call an op, equal bits) and `ExecutionConfig.backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.config import EngineConfig, logit_rows
from octavo.execution.inputs import I32, StepInputs
from octavo.execution.pages import block_shapes
from octavo.execution.rope import rope_tables
from octavo.models.registry import forward_of
from octavo.models.spec import ModelSpec
from octavo.ops.base import Drawn, SampleRow, Scored
from octavo.ops.cpu.ops import CpuOps
from octavo.ops.cpu.packing import Arena
from octavo.types import BlockShape, KVGroupSpec

_ROWS = 32
"""Kernels work on whole groups of so many logit rows, so there is room for as many."""


class NativePages:
    """The wire form of native pools (types.BlockPages). The calls release the GIL."""

    def __init__(self, shapes: tuple[BlockShape, ...], pools: Sequence[_native.KVPool]) -> None:
        self.shapes = shapes
        self._pools = pools
        assert [pool.wire_bytes for pool in pools] == [shape.bytes for shape in shapes]

    def export_block(self, group: int, block: int, wire: memoryview) -> None:
        self._pools[group].export_block(block, wire)

    def import_block(self, group: int, block: int, wire: memoryview) -> None:
        self._pools[group].import_block(block, wire)

    def checksum(self, wire: memoryview) -> int:
        return _native.checksum(wire)


class CpuForward:
    """See `forward.Forward`."""

    new_sample = _native.Sample

    def __init__(
        self,
        config: EngineConfig,
        spec: ModelSpec,
        num_tokens: int,
        arena: Arena,
        groups: tuple[KVGroupSpec, ...],
        num_blocks: tuple[int, ...],
    ) -> None:
        """config is resolved; ids below num_tokens may be drawn."""
        length, execution = config.model.max_model_len, config.execution
        assert length is not None and execution.isa is not None and execution.threads is not None
        float32 = config.model.precision == "float32"
        self.pools = [
            _native.KVPool(
                n,
                config.kv.block_size,
                len(g.layers),
                spec.kv_heads,
                spec.head_dim,
                float32,
            )
            for n, g in zip(num_blocks, groups, strict=True)
        ]
        self.pages = NativePages(block_shapes(spec, groups, config.kv.block_size, config.model.precision), self.pools)
        self._logit_rows = -(-logit_rows(config.speculative, config.scheduler.max_num_seqs) // _ROWS) * _ROWS
        self.program = _native.Program(
            execution.isa,
            execution.threads,
            config.scheduler.max_num_batched_tokens,
            self._logit_rows,
            length,
            float32,
            execution.attention == "naive",
            self.pools,
            rope_tables(spec, length),
            config.model.dequantisation == "integer",
        )
        places = {layer: (g, i) for g, group in enumerate(groups) for i, layer in enumerate(group.layers)}
        ops = CpuOps(self.program, arena, [places[i] for i in range(spec.layers)])
        self._logits: int = forward_of(spec.architecture)(ops, spec, num_tokens)
        # The last one: the one before it gathers what pooled requests want.
        self._gather = max(index for index, name in enumerate(self.program.op_names) if name == "gather_rows")
        assert ops.hidden_rows is not None, "every model records the hidden states of pooled requests"
        self._hidden = ops.hidden_rows
        self._batch = _native.Batch()
        self._replay: Callable[[int, int, _native.Batch], None]
        self._replay = self.program.run_ops if execution.program else self._run_ops
        self._replay_tail = partial(self.program.run_from, self._gather) if execution.program else self._run_tail_ops

    def run(self, inputs: StepInputs) -> list[Drawn]:
        batch = self._batch
        batch.set_tokens(inputs.tokens)
        batch.set_sequences(inputs.seqs, inputs.tables)
        if inputs.shared is not None:
            batch.set_shared(inputs.shared)
        batch.set_logit_rows(inputs.logit_rows)
        batch.set_hidden_rows(inputs.hidden_rows)
        batch.set_samples(inputs.samples)  # type: ignore[arg-type]
        if inputs.late is None:
            self._replay(0, self.program.num_ops, batch)
        else:  # the draws are the program's end
            self._replay(0, self.program.num_ops - 1, batch)
            batch.set_samples(inputs.late())  # type: ignore[arg-type]
            self._replay(self.program.num_ops - 1, self.program.num_ops, batch)
        return self.program.results()

    def score(self, rows: I32, samples: Sequence[SampleRow]) -> list[Scored]:
        found: list[Scored] = []
        for first in range(0, len(rows), self._logit_rows):
            part = slice(first, first + self._logit_rows)
            self._batch.set_logit_rows(rows[part])
            self._batch.set_samples(samples[part])  # type: ignore[arg-type]
            self._replay_tail(self._batch)
            found += [(*drawn, rank) for drawn, rank in zip(self.program.results(), self.program.ranks(), strict=True)]
        return found

    def logits(self, rows: int) -> npt.NDArray[np.float32]:
        read: npt.NDArray[np.float32] = self.program.read(self._logits, rows)
        return read

    def hidden(self, rows: int) -> npt.NDArray[np.float32]:
        read: npt.NDArray[np.float32] = self.program.read(self._hidden, rows)
        return read

    def close(self) -> None:
        self.program.close()

    def _run_ops(self, first: int, last: int, batch: _native.Batch) -> None:
        for index in range(first, last):
            self.program.run_op(index, batch)

    def _run_tail_ops(self, batch: _native.Batch) -> None:
        for index in range(self._gather, self.program.num_ops):
            self.program.run_op(index, batch)
