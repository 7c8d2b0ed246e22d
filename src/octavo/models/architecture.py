"""What an architecture says of itself: how its configuration is read, what its files hold, its forward pass.

Owns the two descriptions `Architecture` and `TensorRule`; every file of `models/architectures/` makes one
`ARCHITECTURE`, and `models/registry.py` lists them. Frozen, made at import; off switch: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelSpec


@dataclass(frozen=True)
class Place:
    """Where a format keeps a tensor: one of the equal runs of values that a tensor of the file is cut into."""

    name: str
    shape: tuple[int, ...]
    """Of the file's tensor."""
    run: int = 0


@dataclass(frozen=True)
class TensorRule:
    """One canonical tensor and where the two formats keep it."""

    canonical: str
    shape: tuple[int, ...]
    """Of the canonical tensor."""
    hf: str
    """Name in a Hugging Face file, with its leading "model."."""
    gguf: str
    optional: bool = False
    rows: tuple[int, int] | None = None
    """The tensor is these rows [begin, end) of a fused one (a view), where a format fuses what others keep apart."""
    gguf_interleaved_heads: int | None = None
    """The GGUF file keeps the rows of that many heads in rotation pairs (0, d/2, 1, d/2 + 1, ...)."""
    hf_places: tuple[Place, ...] = ()
    """Where files in the wild keep the tensor, if in more than one way; the first is `hf`."""
    gguf_places: tuple[Place, ...] = ()
    """As `hf_places`, for GGUF files."""
    place: Place | None = None
    """The one of them that a file has (`names.match`)."""
    hf_plus_one: bool = False
    """A Hugging Face file stores the value minus one; GGUF files store the value."""


Forward = Callable[[Any, ModelSpec, int], Any]
"""(op set, model spec, number of ids that may be drawn) -> logits."""


@dataclass(frozen=True)
class Architecture:
    """One kind of model."""

    name: str
    """As `ModelSpec.architecture`."""
    hf_classes: tuple[str, ...]
    """What config.json may list in `architectures`."""
    model_types: tuple[str, ...]
    """What config.json may say as `model_type`, where it lists no class."""
    gguf_names: tuple[str, ...]
    """What a GGUF file may say as `general.architecture`."""
    hf_spec: Callable[[ConfigReader], ModelSpec]
    gguf_spec: Callable[[Metadata], ModelSpec] | None
    """None where no GGUF file is of this architecture: `gguf_names` is empty."""
    tensors: Callable[[ModelSpec], Sequence[TensorRule]]
    """All tensors that the forward pass reads, in its order; the head is left out where it is tied."""
    forward: Forward
    gguf_accepts: Callable[[Metadata], bool] = lambda meta: True
    """Where several architectures share a name in GGUF files: whether a file is of this one."""
