"""A model directory in Hugging Face's layout, as a checkpoint.

Owns the mapped safetensors files until `close()`. Off switch: none.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from octavo.models.digest import file_digest
from octavo.models.generation import hf_sampling
from octavo.models.hf_config import eos_ids, read_spec, tokenizer_facts, tokenizer_files
from octavo.models.names import Found, ignored, listed, match, other_parts, refuse_inner
from octavo.models.quantised.weights import FileTensor, open_weights
from octavo.models.registry import rules_of
from octavo.models.spec import ModelError, ModelSpec, Tensor
from octavo.models.store import cache_dir
from octavo.ops.numeric import FLOAT_BYTES
from octavo.types import SamplingDefaults

log = logging.getLogger("octavo.models")

_BAND = 1 << 22
SUPPORTED_TYPES = (*FLOAT_BYTES, "G4", "G8")


class HFCheckpoint:
    """config.json, safetensors and tokenizer.json of one directory."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self._folder = folder
        self.spec, config = read_spec(folder)
        facts = tokenizer_facts(folder)
        if not facts.num_tokens:
            raise ModelError(f"{folder}: the tokeniser has no token in use; the files must hold its vocabulary")
        if facts.num_learned > self.spec.vocab:
            raise ModelError(
                f"{folder}: the tokeniser knows {facts.num_learned} tokens, the embedding has {self.spec.vocab} rows"
            )
        self.num_tokens = min(facts.num_tokens, self.spec.vocab)
        rowless = [token.content[:80] for token in facts.added_tokens if token.id >= self.spec.vocab]
        if rowless:
            log.warning("%s: the embedding has no row for the added %s", folder, listed(rowless, "token"))
        self.eos_token_ids = eos_ids(folder, config.eos_token_id, facts)
        weights = open_weights(folder)
        self._tensors, self._files, self.notes = weights.tensors, weights.files, weights.notes
        if other := other_parts(self._tensors):
            self.notes = (*self.notes, f"text alone: {' and '.join(other)} of the files are not read")
        self._found = {name: Found(tensor.type, tensor.shape) for name, tensor in self._tensors.items()}
        _check_head(folder, self.spec, self._tensors)
        self._matched = match(str(folder), rules_of(self.spec), self._found, "hf")
        for name in self._matched.rules:
            kind = self._found[name].source
            if kind not in SUPPORTED_TYPES:
                raise ModelError(
                    f"{folder}: tensor {name} has type {kind}, which is not supported; supported: "
                    f"{', '.join(FLOAT_BYTES)}, and quantised weights that config.json describes"
                )
        # Quantisers write a bias of zeros for every module.
        unknown = [n for n in self._matched.unknown if not (n.endswith(".bias") and _is_zero(self._tensors[n]))]
        if unknown:
            log.warning("%s", ignored(str(folder), unknown, self.spec.architecture))
        self.total_bytes = sum(self._tensors[name].nbytes for name in self._matched.rules)

    def sampling(self) -> SamplingDefaults:
        return hf_sampling(self._folder)

    def weights_id(self) -> str:
        """Over the weights and config.json, whose constants are part of what they compute."""
        hasher = hashlib.sha256()
        for path in (self._folder / "config.json", *self._files):
            hasher.update(f"{len(path.name)}:{path.name}:{file_digest(path, cache_dir())}".encode())
        return hasher.hexdigest()

    def tokenizer_id(self) -> str:
        hasher = hashlib.sha256()
        for path in tokenizer_files(self._folder):
            hasher.update(f"{len(path.name)}:{path.name}:{file_digest(path, cache_dir())}".encode())
        return hasher.hexdigest()

    def sources(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self._matched.sources(self._found)

    def tensors(self) -> Iterator[Tensor]:
        return self._matched.map(self._file_tensors())

    def _file_tensors(self) -> Iterator[Tensor]:
        """Those that the model needs, in the order of the files."""
        for stored in self._tensors.values():
            if stored.name in self._matched.rules:
                yield Tensor(stored.name, stored.type, stored.shape, _aligned(stored.data))

    def close(self) -> None:
        self._tensors = {}


def _check_head(folder: Path, spec: ModelSpec, tensors: dict[str, FileTensor]) -> None:
    """A tied model may store its head too, but then it must be the embedding; an untied one must have a head."""
    head = tensors.get("lm_head.weight")
    embedding = tensors.get("model.embed_tokens.weight", tensors.get("embed_tokens.weight"))
    if not spec.tied and head is None:
        refuse_inner(str(folder), tensors)
        raise ModelError(
            f"{folder} lacks tensor lm_head.weight, and its config.json does not tie it to the embedding "
            "(tie_word_embeddings is false): the files are incomplete, or it should be true"
        )
    if not spec.tied or head is None or embedding is None:
        return
    if head.type != embedding.type or not _same(head.data, embedding.data):
        raise ModelError(
            f"{folder}: config.json ties the head to the embedding, but lm_head.weight differs from it; "
            "set tie_word_embeddings to false to use it"
        )


def _aligned(data: memoryview) -> memoryview:
    """The same bytes at an address that floats may have; headers of an odd length cost a copy."""
    address: int = np.frombuffer(data, np.uint8).ctypes.data
    return data if address % 4 == 0 else np.frombuffer(data, np.uint8).copy().data


def _same(one: memoryview, other: memoryview) -> bool:
    """In bands: a comparison of the whole would take as much memory again."""
    return len(one) == len(other) and all(
        np.array_equal(np.frombuffer(one[at : at + _BAND], np.uint8), np.frombuffer(other[at : at + _BAND], np.uint8))
        for at in range(0, len(one), _BAND)
    )


def _is_zero(tensor: FileTensor) -> bool:
    return not np.frombuffer(tensor.data, np.uint8).any()
