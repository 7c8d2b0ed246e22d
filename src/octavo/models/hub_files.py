"""Which files of a Hugging Face repository a model needs. Pure: from names to names.

A repository holds much more than a model: weights in three formats, pickles among them (which may run code and are
never fetched), original checkpoints, adapters, images. Off switch: name a directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from octavo.models.spec import ModelError

INDEX = "model.safetensors.index.json"
SMALL = frozenset(
    (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "quantize_config.json",
        "quant_config.json",
        INDEX,
    )
)
"""All that is read beside the weights, apart from templates."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model")
TEMPLATES = re.compile(r"(additional_chat_templates/)?[^/]+\.jinja")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5", ".npz")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_LISTED = 12


@dataclass(frozen=True)
class GgufGroup:
    """One GGUF model: a file, or all its shards."""

    name: str
    """The file, or the first shard."""
    files: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Shards that its numbering promises and the repository lacks."""


def small_files(files: Iterable[str]) -> list[str]:
    """Configuration, tokeniser and templates."""
    return sorted(name for name in files if name in SMALL or TEMPLATES.fullmatch(name))


def safetensors_files(where: str, files: Collection[str], weight_map: Mapping[str, str] | None) -> list[str]:
    """The weights, by the rule that reads them: model.safetensors, else what the index names, else the only file."""
    if "model.safetensors" in files:
        return ["model.safetensors"]
    if weight_map is not None:
        wanted = sorted(set(weight_map.values()))
        missing = [name for name in wanted if name not in files]
        if missing:
            raise ModelError(f"{where} lacks {', '.join(missing[:3])}, which its {INDEX} names")
        return wanted
    found = [name for name in files if "/" not in name and name.endswith(".safetensors")]
    if len(found) == 1:
        return found
    raise _no_weights(where, files)


def _no_weights(where: str, files: Collection[str]) -> ModelError:
    pickles = sorted(name for name in files if name.endswith(_PICKLES))
    if pickles:
        return ModelError(
            f"{where} has its weights only as {pickles[0]}, a format that may run code and is never loaded: "
            "name a repository with safetensors or GGUF files"
        )
    return ModelError(
        f"{where} is no model that can be served: it holds neither config.json with model.safetensors nor a GGUF file"
    )


def has_safetensors(files: Collection[str]) -> bool:
    return "config.json" in files and (
        INDEX in files or any("/" not in name and name.endswith(".safetensors") for name in files)
    )


def gguf_groups(files: Iterable[str]) -> list[GgufGroup]:
    """The GGUF models of a repository; projectors of images are none."""
    groups: dict[str, set[str]] = {}
    names = [name for name in files if name.lower().endswith(".gguf")]
    names = [name for name in names if "mmproj" not in PurePosixPath(name).name.lower()]
    for name in names:
        shard = _SHARD.fullmatch(name)
        first = f"{shard['stem']}-00001-of-{shard['count']}{name[-5:]}" if shard else name
        groups.setdefault(first, set()).add(name)
    return [_group(first, found) for first, found in sorted(groups.items())]


def _group(first: str, found: set[str]) -> GgufGroup:
    shard = _SHARD.fullmatch(first)
    if shard is None:
        return GgufGroup(first, (first,))
    count = int(shard["count"])
    if not 1 <= count <= 9999:
        return GgufGroup(first, tuple(sorted(found)), (first,))
    wanted = [f"{shard['stem']}-{i:05d}-of-{shard['count']}{first[-5:]}" for i in range(1, count + 1)]
    return GgufGroup(first, tuple(wanted), tuple(name for name in wanted if name not in found))


def choose_gguf(where: str, spelt: str, files: Collection[str], wanted: str | None) -> GgufGroup:
    """The group that `wanted` names: a path, a file's name, or a part of it (such as Q4_K_M) that only one has."""
    groups = gguf_groups(files)
    if not groups:
        if wanted is not None:
            raise ModelError(f"{where} holds no GGUF file, so there is no {wanted} in it; name it without :{wanted}")
        raise _no_weights(where, files)
    if wanted is None:
        chosen = groups
        problem = f"{where} holds {len(groups)} GGUF models"
    else:
        low = wanted.lower()
        chosen = [g for g in groups if wanted == g.name or any(wanted == PurePosixPath(f).name for f in g.files)]
        chosen = chosen or [group for group in groups if low in group.name.lower()]
        problem = f"{where} holds {'no' if not chosen else f'{len(chosen)} files like'} {wanted}"
    if len(chosen) != 1:
        names = [group.name for group in chosen or groups]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        raise ModelError(f"{problem}: name one, such as {spelt}:{names[0]}; it has {', '.join(names[:_LISTED])}{more}")
    group = chosen[0]
    if group.missing:
        raise ModelError(f"{where} lacks {group.missing[0]}, one of the {len(group.files)} parts of {group.name}")
    return group
