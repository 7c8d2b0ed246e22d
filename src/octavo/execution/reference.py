"""The forward pass in NumPy. Off switch: `ExecutionConfig.backend = "cpu"`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.config import EngineConfig
from octavo.execution.inputs import I32, StepInputs
from octavo.execution.pages import ReferencePages, block_shapes
from octavo.execution.rope import rope_tables
from octavo.models.registry import forward_of
from octavo.models.spec import Checkpoint
from octavo.ops.base import Drawn, SampleRow, Scored
from octavo.ops.numeric import expand_tensor
from octavo.ops.reference.ops import Numerics, Pages, ReferenceBatch, ReferenceOps
from octavo.ops.reference.sampler import ReferenceSample, rank
from octavo.types import KVGroupSpec


class ReferenceForward:
    """See `forward.Forward`."""

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        groups: tuple[KVGroupSpec, ...],
        num_blocks: tuple[int, ...],
        progress: Callable[[str, float | None], None],
    ) -> None:
        spec = checkpoint.spec
        rounded = config.model.precision == "bf16"
        weights = {}
        done = 0
        for tensor in checkpoint.tensors():
            weights[tensor.name] = expand_tensor(tensor, rounded)
            done += tensor.data.nbytes
            progress("loading weights", min(1.0, done / checkpoint.total_bytes))
        ropes = rope_tables(spec, config.model.max_model_len or spec.max_context)
        pages = [
            Pages(n, config.kv.block_size, len(g.layers), spec.kv_heads, spec.head_dim)
            for n, g in zip(num_blocks, groups, strict=True)
        ]
        shapes = block_shapes(spec, groups, config.kv.block_size, config.model.precision)
        self.pages = ReferencePages(shapes, pages)
        places = {layer: (g, i) for g, group in enumerate(groups) for i, layer in enumerate(group.layers)}
        numerics = Numerics(rounded, config.execution.attention == "naive", ropes)
        self._ops = ReferenceOps(weights, pages, [places[i] for i in range(spec.layers)], numerics)
        self._model = forward_of(spec.architecture)
        self._spec = spec
        self._num_tokens = checkpoint.num_tokens

    def run(self, inputs: StepInputs) -> list[Drawn]:
        samples: Any = inputs.samples if inputs.late is None else inputs.late()
        self._last = inputs
        batch = ReferenceBatch(
            inputs.tokens, inputs.seqs, inputs.tables, inputs.logit_rows, samples, inputs.hidden_rows
        )
        self._ops.begin(batch)
        self._model(self._ops, self._spec, self._num_tokens)
        return self._ops.drawn

    def score(self, rows: I32, samples: Sequence[SampleRow]) -> list[Scored]:
        """Computes the step again, with other logit rows."""
        given: Any = samples
        self.run(replace(self._last, logit_rows=rows, samples=samples))
        logits = self._ops.last_logits[:, : self._num_tokens]
        ranks = [rank(row, sample.given) for row, sample in zip(logits, given, strict=True)]
        return [(*drawn, place) for drawn, place in zip(self._ops.drawn, ranks, strict=True)]

    def logits(self, rows: int) -> npt.NDArray[np.float32]:
        return self._ops.last_logits[:rows]

    def hidden(self, rows: int) -> npt.NDArray[np.float32]:
        return self._ops.last_hidden[:rows]

    def new_sample(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        choice: int,
        num_logprobs: int,
    ) -> ReferenceSample:
        return ReferenceSample(temperature, top_k, top_p, min_p, seed, choice, num_logprobs)

    def close(self) -> None:
        """Nothing is held but memory, which goes with the object."""
