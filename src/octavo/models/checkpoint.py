"""Opens a model, whatever file it came in.

Owns nothing itself: `open_checkpoint` returns an object that maps its files until `close()`. Off switch: none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from octavo.models.digest import model_digest
from octavo.models.files import present
from octavo.models.generation import gguf_sampling
from octavo.models.gguf import FLOAT_TYPES, SUPPORTED_TYPES
from octavo.models.gguf_parts import gguf_of, model_name, open_gguf
from octavo.models.metadata import Metadata
from octavo.models.names import Found, ignored, match
from octavo.models.registry import gguf_model, rules_of
from octavo.models.spec import Checkpoint, ModelError, Tensor
from octavo.models.store import cache_dir
from octavo.types import SamplingDefaults

log = logging.getLogger("octavo.models")

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Token types of GGUF's metadata."""


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a .gguf file (or a part), or a directory; every error is a ModelError, one sentence for the user."""
    path = Path(path)
    file = gguf_of(path)
    if file is None:
        from octavo.models.hf import HFCheckpoint

        return HFCheckpoint(path)
    path = file
    if not present(path):
        raise ModelError(f"{path} does not exist; name a .gguf file or a directory with config.json and safetensors")
    if path.suffix == ".safetensors":
        raise ModelError(f"{path.name} is one file of a model; name its directory, which holds config.json too")
    return GgufCheckpoint(path)


class GgufCheckpoint:
    """A model in one GGUF file, or in the parts of a split one."""

    notes: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.name = model_name(path)
        self._file = open_gguf(path)
        meta = Metadata(self._file)
        self.spec = gguf_model(meta)
        self.num_tokens = gguf_num_tokens(meta)
        if self.num_tokens > self.spec.vocab:
            raise meta.error(f"the tokeniser knows {self.num_tokens} tokens, the embedding has {self.spec.vocab} rows")
        self.eos_token_ids = gguf_eos_ids(meta)
        self._found = {name: Found(tensor.type, tensor.shape) for name, tensor in self._file.tensors.items()}
        self._matched = match(path.name, rules_of(self.spec), self._found, "gguf")
        for name in self._matched.rules:
            kind = self._found[name].source
            if kind not in FLOAT_TYPES and len(self._found[name].shape) == 1:
                raise meta.error(f"tensor {name} is a vector of type {kind}; vectors must be F32, F16 or BF16")
            if kind not in SUPPORTED_TYPES:
                supported = ", ".join(SUPPORTED_TYPES)
                raise meta.error(f"tensor {name} has type {kind}, which is not supported; supported: {supported}")
        if self._matched.unknown:
            log.warning("%s", ignored(path.name, self._matched.unknown, self.spec.architecture))
        self.total_bytes = sum(self._file.tensors[name].nbytes for name in self._matched.rules)

    def sampling(self) -> SamplingDefaults:
        return gguf_sampling(Metadata(self._file))

    def weights_id(self) -> str:
        return model_digest(self._file.paths, cache_dir())

    def tokenizer_id(self) -> str:
        return ""

    def sources(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self._matched.sources(self._found)

    def tensors(self) -> Iterator[Tensor]:
        return self._matched.map(self._file_tensors())

    def _file_tensors(self) -> Iterator[Tensor]:
        """Those that the model needs, in the order of the files."""
        for row in self._file.in_order():
            if row.name in self._matched.rules:
                yield Tensor(row.name, row.type, row.shape, self._file.data(row.name))

    def close(self) -> None:
        self._file.close()


def gguf_token_types(meta: Metadata) -> Any:
    """One number a token: 1 normal, 3 control, 4 user-defined, 5 unused."""
    count = len(meta.strings("tokenizer.ggml.tokens"))
    types = meta.values.get("tokenizer.ggml.token_type")
    if types is None:
        return np.ones(count, np.int32)
    if not isinstance(types, np.ndarray) or len(types) != count:
        raise meta.error(f"tokenizer.ggml.token_type must hold one number for each of the {count} tokens")
    return types


def gguf_num_tokens(meta: Metadata) -> int:
    """Tokens up to the last one in use: converters fill the vocabulary up to the embedding's rows."""
    used = np.flatnonzero(gguf_token_types(meta) != UNUSED)
    tokens = meta.strings("tokenizer.ggml.tokens")
    if not any(tokens[i] for i in used):
        raise meta.error("the tokeniser has no token in use: all are empty or of type 5 (unused)")
    return int(used[-1]) + 1


TURN_ENDS = frozenset(("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endofturn|>"))
"""Control tokens that end a turn in whatever model has them; many files name the end of text alone."""


def gguf_eos_ids(meta: Metadata) -> tuple[int, ...]:
    """The ids that end a text, a turn or a message, without repetition."""
    tokens = meta.strings("tokenizer.ggml.tokens")
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    present = [f"tokenizer.ggml.{key}" for key in keys if f"tokenizer.ggml.{key}" in meta.values]
    named = [meta.integer(key, high=len(tokens) - 1) for key in present]
    known = [i for i in np.flatnonzero(gguf_token_types(meta) == CONTROL).tolist() if tokens[i] in TURN_ENDS]
    return tuple(dict.fromkeys(named + known))
