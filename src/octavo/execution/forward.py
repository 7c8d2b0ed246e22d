"""One back end's forward pass, as the executor sees it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.execution.inputs import StepInputs
from octavo.ops.base import Drawn, SampleRow
from octavo.types import BlockPages


class Forward(Protocol):
    """Weights, pages and a model, ready to run any step within the configured limits."""

    @property
    def pages(self) -> BlockPages:
        """Keys and values in their wire form."""
        ...

    def run(self, inputs: StepInputs) -> list[Drawn]:
        """The step; one draw a sample."""
        ...

    def logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The first logit rows of the last run, [rows, vocab]."""
        ...

    def new_sample(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        choice: int,
        num_logprobs: int,
    ) -> SampleRow: ...

    def close(self) -> None: ...
