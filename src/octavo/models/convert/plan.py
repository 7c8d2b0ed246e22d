"""What a converted model's tensors will be: names, types, shapes, and where each canonical tensor lies in them.

Made from types and shapes alone, before a byte of weights is read, so that a file's header can be written first and the
tensors streamed behind it in whatever order the source has them. Owns nothing; off switch: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.models.architecture import Place, TensorRule
from octavo.models.gguf import SUPPORTED_TYPES
from octavo.models.names import Naming, file_name
from octavo.models.spec import ModelError
from octavo.ops.blocks import FORMATS
from octavo.ops.numeric import FLOAT_BYTES, row_bytes

Sources = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Target:
    """One tensor of the new file."""

    name: str
    type: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows * row_bytes(self.type, self.shape[-1])


@dataclass(frozen=True)
class Piece:
    """Where a canonical tensor lies."""

    rule: TensorRule
    target: str
    type: str
    offset: int
    """Bytes from the start of the target."""


@dataclass(frozen=True)
class Plan:
    naming: Naming
    targets: tuple[Target, ...]
    pieces: Mapping[str, Piece]
    """By canonical name."""
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(target.nbytes for target in self.targets)


def plan(rules: Sequence[TensorRule], sources: Sources, naming: Naming, wanted: str | None) -> Plan:
    """`wanted`: the type of matrices; None keeps what the new format can hold and makes float32 of the rest."""
    groups: dict[str, list[TensorRule]] = {}
    for rule in rules:
        if rule.canonical in sources:
            groups.setdefault(_home(rule, naming).name, []).append(rule)
    targets, pieces, fallbacks = [], {}, 0
    for name, members in groups.items():
        shape = _shape(members, naming)
        kinds = {_type(rule, *sources[rule.canonical], naming, wanted) for rule in members}
        kind = kinds.pop() if len(kinds) == 1 else "F32"
        if kind in FORMATS and shape[-1] % FORMATS[kind].values:
            kind, fallbacks = "BF16", fallbacks + 1
        targets.append(Target(name, kind, shape))
        for rule in members:
            pieces[rule.canonical] = Piece(rule, name, kind, _offset(rule, naming, kind))
    notes = (f"{fallbacks} matrices are BF16: their rows are no whole blocks of {wanted}",) if fallbacks else ()
    return Plan(naming, tuple(targets), pieces, notes)


def _home(rule: TensorRule, naming: Naming) -> Place:
    """Where new files keep the tensor."""
    places = rule.gguf_places if naming == "gguf" else rule.hf_places
    return places[0] if places else Place(file_name(rule, naming), rule.shape)


def _shape(members: Sequence[TensorRule], naming: Naming) -> tuple[int, ...]:
    """Of the file's tensor that holds all of these."""
    first = members[0]
    if first.rows is not None:
        return (max(rule.rows[1] for rule in members if rule.rows is not None), *first.shape[1:])
    return _home(first, naming).shape


def _offset(rule: TensorRule, naming: Naming, kind: str) -> int:
    """Bytes of the file's tensor before the rule's own."""
    if rule.rows is not None:
        return Target("", kind, (rule.rows[0], *rule.shape[1:])).nbytes
    return _home(rule, naming).run * Target("", kind, rule.shape).nbytes


def _type(rule: TensorRule, source: str, shape: tuple[int, ...], naming: Naming, wanted: str | None) -> str:
    """Vectors and routers stay in floats, in GGUF in float32, as its other readers want them."""
    small = len(shape) == 1 or shape[0] == 1 or rule.canonical.endswith(("router.weight", "shared_gate.weight"))
    if small and naming == "gguf":
        return "F32"
    if wanted is not None:
        return wanted if naming == "gguf" or wanted in FLOAT_BYTES else "F32"
    return source if source in (SUPPORTED_TYPES if naming == "gguf" else FLOAT_BYTES) else "F32"


def check_type(wanted: str | None, naming: Naming, writable: Sequence[str]) -> None:
    """Refuses a type that the new format cannot hold."""
    allowed = [kind for kind in writable if naming == "gguf" or kind in FLOAT_BYTES]
    if wanted is not None and wanted not in allowed:
        raise ModelError(f"--type {wanted} cannot be written to {naming_text(naming)}; use one of {', '.join(allowed)}")


def naming_text(naming: Naming) -> str:
    return "a GGUF file" if naming == "gguf" else "a safetensors directory"
