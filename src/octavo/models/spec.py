"""What a model is, independent of the file it came in: sizes, and the interface of an opened checkpoint.

Canonical tensor names (matrices are [out, in], row-major; rotary q and k rows in half-split order, as in
Hugging Face files; GGUF's interleaved order is undone by the reader):

    embed.weight                       [vocab, hidden]
    layers.{i}.attn_norm.weight        [hidden]
    layers.{i}.attn.{q,k,v,o}.weight   and optional .bias
    layers.{i}.mlp_norm.weight         [hidden]
    layers.{i}.mlp.{gate,up,down}.weight
    norm.weight                        [hidden]
    head.weight                        [vocab, hidden]; absent where tied to embed.weight
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ModelSpec:
    """Sizes and constants of a decoder-only transformer."""

    architecture: str
    """"llama"."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context: int
    norm_eps: float
    rope_theta: float
    tied: bool
    """The output head is the embedding."""
    attn_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True)
class Tensor:
    """One tensor as it lies in the file."""

    name: str
    """Canonical."""
    source: str
    """"F32", "F16", "BF16", "Q8_0" or "Q4_1"."""
    shape: tuple[int, ...]
    data: memoryview
    """Rows of the source format, contiguous (a view of the mapped file, or a reordered copy)."""


class ModelError(ValueError):
    """A model that cannot be served; the message is one sentence for the user that names the file or tensor.

    Names come from files that nobody vouches for: the message is kept short and printable here, for all of them.
    """

    def __init__(self, message: str) -> None:
        text = "".join(character if character.isprintable() else "?" for character in message[:1000])
        super().__init__(text if len(message) <= 1000 else text[:-3] + "...")


class Checkpoint(Protocol):
    """An opened model: a GGUF file, or a directory with safetensors."""

    name: str
    spec: ModelSpec
    eos_token_ids: tuple[int, ...]
    num_tokens: int
    """Ids that the tokeniser knows."""
    total_bytes: int
    """Bytes of tensor data, for progress."""

    def weights_id(self) -> str:
        """Digest of the content (cached by size, mtime and inode)."""
        ...

    def sources(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Canonical name -> (source type, shape), checked: nothing missing, shapes right (else ModelError)."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, one at a time, in the order of the file."""
        ...

    def close(self) -> None: ...
