"""What a model's files say of it, without loading weights: the facts that `octavo doctor` and `octavo pull` tell.

`inspect` opens the files twice over: once as they are (kind, types, bytes), which works for models that Octavo does not
support too, and once as the engine would. A refusal is part of the answer, with every tensor that is missing or wrong
and not only the first. Owns nothing; all mappings are closed. Off switch: none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from octavo.models.checkpoint import open_checkpoint
from octavo.models.config_reader import ConfigReader
from octavo.models.files import present
from octavo.models.gguf_parts import gguf_of, open_gguf
from octavo.models.hf_config import config_path
from octavo.models.jsonfile import read_json
from octavo.models.metadata import Metadata
from octavo.models.names import Found, Naming, compare
from octavo.models.quantised.weights import open_weights
from octavo.models.registry import gguf_model, hf_model, rules_of
from octavo.models.safetensors import open_safetensors
from octavo.models.spec import ModelError, ModelSpec


@dataclass(frozen=True)
class TypeCount:
    """Tensors of one type."""

    type: str
    tensors: int
    values: int
    bytes: int


@dataclass(frozen=True)
class TensorFaults:
    """Names as in the file."""

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()
    """NAME [shape] instead of [shape]."""


@dataclass(frozen=True)
class Inspection:
    """All that the files say."""

    path: str
    kind: str
    """"GGUF, 2 files", "safetensors, 1 file"; "directory" or "unknown" where they cannot be read."""
    architecture: str | None = None
    """In the file's own words."""
    types: tuple[TypeCount, ...] = ()
    """As the files have them."""
    parameters: int = 0
    """Values of the weights; 0 where a quantisation is not known."""
    faults: TensorFaults = field(default_factory=TensorFaults)
    spec: ModelSpec | None = None
    """None: refused before its sizes were known."""
    notes: tuple[str, ...] = ()
    """What the reader changes, such as a quantisation that is expanded."""
    refusal: str | None = None
    """Why it would not start, in one sentence."""

    @property
    def total_bytes(self) -> int:
        return sum(row.bytes for row in self.types)


def inspect(path: Path) -> Inspection:
    """Never raises ModelError: what is wrong is in the answer."""
    try:
        seen = _look(path)
    except ModelError as error:
        return Inspection(str(path), "unknown", refusal=str(error))
    try:
        checkpoint = open_checkpoint(path)
    except ModelError as error:
        return replace(seen, refusal=seen.refusal or str(error))
    try:
        return replace(seen, spec=checkpoint.spec, notes=checkpoint.notes, refusal=None)
    finally:
        checkpoint.close()


def inspect_config(path: Path) -> Inspection:
    """What config.json alone says, be the weights here or not."""
    try:
        values: dict[str, Any] = read_json(path, dict)
    except ModelError as error:
        return Inspection(str(path.parent), "directory", refusal=str(error))
    classes = values.get("architectures")
    named = classes[0] if isinstance(classes, list) and classes else values.get("model_type")
    seen = Inspection(str(path.parent), "directory", _text(named))
    try:
        return replace(seen, spec=hf_model(ConfigReader(path, values)))
    except ModelError as error:
        return replace(seen, refusal=str(error))


def _look(path: Path) -> Inspection:
    file = gguf_of(path)
    if file is None:
        return _look_at_directory(path)
    if file.suffix == ".safetensors" or not present(file):
        open_checkpoint(file)  # refuses it in its own words
    return _look_at_gguf(file)


def _look_at_gguf(path: Path) -> Inspection:
    file = open_gguf(path)
    try:
        meta = Metadata(file)
        found = {name: Found(tensor.type, tensor.shape) for name, tensor in file.tensors.items()}
        seen = Inspection(
            path=str(path),
            kind=_kind("GGUF", len(file.paths)),
            architecture=_text(file.metadata.get("general.architecture")),
            types=_types(found, {name: tensor.nbytes for name, tensor in file.tensors.items()}),
            parameters=sum(prod(tensor.shape) for tensor in file.tensors.values()),
        )
        try:
            spec = gguf_model(meta)
        except ModelError:
            return seen
        return replace(seen, spec=spec, faults=_faults(path.name, spec, found, "gguf"))
    finally:
        file.close()


def _look_at_directory(folder: Path) -> Inspection:
    seen = inspect_config(config_path(folder))
    try:
        tensors, files = open_safetensors(folder)
    except ModelError as error:
        return replace(seen, refusal=seen.refusal or str(error))
    found = {name: Found(tensor.type, tensor.shape) for name, tensor in tensors.items()}
    types = _types(found, {name: len(tensor.data) for name, tensor in tensors.items()})
    seen = replace(seen, kind=_kind("safetensors", len(files)), types=types)
    try:
        # Quantised matrices are several tensors of the files, and one of the model.
        weights = {name: Found(one.type, one.shape) for name, one in open_weights(folder).tensors.items()}
    except ModelError as error:
        return replace(seen, refusal=seen.refusal or str(error))
    seen = replace(seen, parameters=sum(prod(one.shape) for one in weights.values()))
    return seen if seen.spec is None else replace(seen, faults=_faults(str(folder), seen.spec, weights, "hf"))


def _faults(where: str, spec: ModelSpec, found: Mapping[str, Found], naming: Naming) -> TensorFaults:
    try:
        compared = compare(where, rules_of(spec), found, naming)
    except ModelError:
        return TensorFaults()
    misshapen = [
        f"{name} {list(found[name].shape)} instead of {list(shape)}" for name, shape in compared.misshapen.items()
    ]
    return TensorFaults(compared.missing, compared.unknown, tuple(misshapen))


def _types(found: Mapping[str, Found], sizes: Mapping[str, int]) -> tuple[TypeCount, ...]:
    """The largest first."""
    tensors, values, nbytes = Counter[str](), Counter[str](), Counter[str]()
    for name, tensor in found.items():
        tensors[tensor.source] += 1
        values[tensor.source] += prod(tensor.shape)
        nbytes[tensor.source] += sizes[name]
    return tuple(TypeCount(kind, tensors[kind], values[kind], size) for kind, size in nbytes.most_common())


def _kind(what: str, files: int) -> str:
    return f"{what}, {files} file{'' if files == 1 else 's'}"


def _text(value: object) -> str | None:
    return value[:80] if isinstance(value, str) else None
