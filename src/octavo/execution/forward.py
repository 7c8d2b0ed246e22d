"""One back end's forward pass, as the executor sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.execution.inputs import I32, StepInputs
from octavo.ops.base import Drawn, SampleRow, Scored
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

    def hidden(self, rows: int) -> npt.NDArray[np.float32]:
        """The first hidden rows of the last run, normalised, [rows, hidden]."""
        ...

    def score(self, rows: I32, samples: Sequence[SampleRow]) -> list[Scored]:
        """Log-probabilities of given tokens at rows of the last run: one a sample, computed a bounded part at once.

        The logits and draws of the run are gone afterwards.
        """
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
