"""Matches a file's tensors with what the architecture's rules want, in both directions, and maps one to the other.

Owns no tensor: `match` looks at names, types and shapes alone; `Matched.map` then turns a stream of file tensors into
canonical ones, one at a time: views of the file where rows are taken from a fused or stacked tensor, a copy of one
tensor where its values or the order of its rows change. A needed tensor that is missing or has another shape is an
error; one that nothing reads is reported, unless it is known to carry nothing (tables of rotary frequencies).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from octavo.models.architecture import TensorRule
from octavo.models.spec import ModelError, Tensor
from octavo.ops.numeric import expand
from octavo.ops.pages import give_back

Naming = Literal["gguf", "hf"]

_HARMLESS = re.compile(
    r"(rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.attn_rot_embd\.weight|.*rotary_emb\.inv_freq)"
)
_TEXT_PART = "language_model."
"""Before the names of the decoder, in the files of models that read images too."""
_MULTIMODAL = ("language_model.", "model.language_model.", "text_model.")
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.")
_HEAD = {"gguf": "output.weight", "hf": "lm_head.weight"}


@dataclass(frozen=True)
class Found:
    """A tensor of a file, before it is matched with a canonical name."""

    source: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Matched:
    """What a file holds of a model."""

    naming: Naming
    rules: dict[str, tuple[TensorRule, ...]]
    """Name in the file -> what it holds, in the order of the forward pass."""
    unknown: tuple[str, ...]
    """Names in the file that nothing reads."""

    def sources(self, found: Mapping[str, Found]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Canonical name -> (type, shape), as `map` gives them."""
        return {
            rule.canonical: ("F32" if self._adds_one(rule) else found[name].source, rule.shape)
            for name, rules in self.rules.items()
            for rule in rules
        }

    def map(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Canonical tensors of a stream of file tensors; those that no rule wants are skipped."""
        for tensor in tensors:
            for rule in self.rules.get(tensor.name, ()):
                yield self._canonical(rule, tensor)
            give_back(tensor.data)

    def _adds_one(self, rule: TensorRule) -> bool:
        return self.naming == "hf" and rule.hf_plus_one

    def _canonical(self, rule: TensorRule, tensor: Tensor) -> Tensor:
        data = _slice(rule, tensor)
        if self.naming == "gguf" and rule.gguf_interleaved_heads is not None:
            data = half_split_rows(data, rule.gguf_interleaved_heads, rule.shape[0])
        if self._adds_one(rule):
            values = expand(tensor.source, rule.shape, data) + np.float32(1)
            return Tensor(rule.canonical, "F32", rule.shape, values.reshape(-1).view(np.uint8).data)
        return Tensor(rule.canonical, tensor.source, rule.shape, data)


def _slice(rule: TensorRule, tensor: Tensor) -> memoryview:
    """The bytes of a rule's rows; rows lie one after another whatever the type."""
    if rule.place is not None:
        size = len(tensor.data) * math.prod(rule.shape) // math.prod(tensor.shape)
        return tensor.data[rule.place.run * size : (rule.place.run + 1) * size]
    if rule.rows is not None:
        size = len(tensor.data) // tensor.shape[0]
        return tensor.data[rule.rows[0] * size : rule.rows[1] * size]
    return tensor.data


def half_split_rows(data: memoryview, heads: int, rows: int) -> memoryview:
    """Rows of each head from GGUF's interleaved order (0, d/2, 1, d/2 + 1, ...) to the half-split one. Copies."""
    table = np.frombuffer(data, np.uint8).reshape(heads, rows // heads // 2, 2, len(data) // rows)
    return np.ascontiguousarray(table.swapaxes(1, 2)).reshape(-1).data


def file_name(rule: TensorRule, naming: Naming) -> str:
    return rule.gguf if naming == "gguf" else rule.hf


@dataclass(frozen=True)
class Comparison:
    """A file's tensors against the rules, in both directions."""

    present: dict[str, tuple[TensorRule, ...]]
    """Name in the file -> what it holds, in the order of the forward pass."""
    missing: tuple[str, ...]
    misshapen: dict[str, tuple[int, ...]]
    """Name in the file -> the shape that the configuration says."""
    unknown: tuple[str, ...]
    """Names in the file that nothing reads."""


def compare(where: str, rules: Sequence[TensorRule], found: Mapping[str, Found], naming: Naming) -> Comparison:
    """All that differs between a file and what a model needs.

    A Hugging Face file may leave out the leading "model." (a base model that was saved alone). A stored head beside a
    tied embedding is left to the caller, which knows the data.
    """
    if naming == "hf":
        rules = _as_stored(where, rules, found)
    rules = [_settled(rule, found, naming) for rule in rules]
    by_file: dict[str, list[TensorRule]] = {}
    for rule in rules:
        by_file.setdefault(file_name(rule, naming), []).append(rule)
    missing = [name for name, wanted in by_file.items() if name not in found and not all(r.optional for r in wanted)]
    present = {name: tuple(wanted) for name, wanted in by_file.items() if name in found}
    shapes = {name: _file_shape(wanted) for name, wanted in present.items()}
    misshapen = {name: shape for name, shape in shapes.items() if found[name].shape != shape}
    unknown = [name for name in found if name not in by_file and name != _HEAD[naming] and not is_harmless(name)]
    return Comparison(present, tuple(missing), misshapen, tuple(unknown))


def match(where: str, rules: Sequence[TensorRule], found: Mapping[str, Found], naming: Naming) -> Matched:
    """Matches a file's tensors with the rules; ModelError names what is missing or has a wrong shape."""
    compared = compare(where, rules, found, naming)
    if compared.missing:
        raise ModelError(
            f"{where} lacks {listed(compared.missing)}; the model's files are incomplete or of another model"
        )
    for name, shape in compared.misshapen.items():
        raise ModelError(
            f"{where}: tensor {name} has shape {list(found[name].shape)}, the configuration says {list(shape)}"
        )
    return Matched(naming, compared.present, compared.unknown)


def _file_shape(rules: Sequence[TensorRule]) -> tuple[int, ...]:
    """The shape of the file's tensor that holds all of these."""
    first = rules[0]
    if first.place is not None:
        return first.place.shape
    if first.rows is not None:
        return (max(rule.rows[1] for rule in rules if rule.rows is not None), *first.shape[1:])
    return first.shape


def _settled(rule: TensorRule, found: Mapping[str, Found], naming: Naming) -> TensorRule:
    """The rule with the first of its places that the file has; one that is nowhere keeps the usual name."""
    places = rule.gguf_places if naming == "gguf" else rule.hf_places
    there = [place for place in places if place.name in found]
    if not there:
        return rule
    place = next((place for place in there if found[place.name].shape == place.shape), there[0])
    return (
        replace(rule, place=place, gguf=place.name) if naming == "gguf" else replace(rule, place=place, hf=place.name)
    )


def _renamed(rule: TensorRule, rename: Callable[[str], str]) -> TensorRule:
    places = tuple(replace(place, name=rename(place.name)) for place in rule.hf_places)
    return replace(rule, hf=rename(rule.hf), hf_places=places)


def _as_stored(where: str, rules: Sequence[TensorRule], found: Mapping[str, Found]) -> Sequence[TensorRule]:
    """The rules with the prefix that the file uses."""
    if not rules or rules[0].hf in found:
        return rules
    bare = rules[0].hf.removeprefix("model.")
    if bare in found:
        return [_renamed(rule, lambda name: name.removeprefix("model.")) for rule in rules]
    if _TEXT_PART + rules[0].hf in found:
        return [_renamed(rule, lambda name: _TEXT_PART + name) for rule in rules]
    refuse_inner(where, (name for name in found if name.endswith(bare)))
    return rules


def refuse_inner(where: str, names: Iterable[str]) -> None:
    """Refuses the language model inside another one, where its names cannot be read."""
    inner = next((name for name in names if name.startswith(_MULTIMODAL)), None)
    if inner is not None:
        raise ModelError(
            f"{where} holds the language model of a multimodal one (tensor {inner}), which is not supported; "
            "use the text-only model, or convert it with the names that its own class saves"
        )


def other_parts(names: Iterable[str]) -> tuple[str, ...]:
    """The parts of a file that are not for text, by the first words of their tensors' names."""
    return tuple(sorted({name.split(".")[0] for name in names if name.startswith(_OTHER_PARTS)}))


def is_harmless(name: str) -> bool:
    """Whether a tensor outside the list carries nothing for text that the configuration does not."""
    return name.startswith(_OTHER_PARTS) or _HARMLESS.fullmatch(name) is not None


def ignored(where: str, names: Sequence[str], architecture: str) -> str:
    """The warning of tensors that nothing reads, in one line however many there are."""
    verb = "is" if len(names) == 1 else "are"
    return f"{where}: {listed(names)} {verb} not part of a {architecture} model and {verb} ignored"


def listed(names: Sequence[str], noun: str = "tensor") -> str:
    """The count and the first three."""
    shown = ", ".join(names[:3])
    noun = noun if len(names) == 1 else f"{len(names)} {noun}s:"
    return f"{noun} {shown}" + (" and others" if len(names) > 3 else "")
