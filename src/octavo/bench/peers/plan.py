"""What is to be compared, from the options of the command: which engines, forms and works, and what cannot run here.

An engine that has no finished environment, or whose form cannot be made, is a problem of one line; the others go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.bench.peers.contender import FULL, QUICK, Contender, Room, Work, offline, room_for
from octavo.bench.peers.environments import PEERS, Environment, Say, find
from octavo.bench.peers.forms import FORMS, Form, FormError, prepare
from octavo.bench.peers.http import HTTP_FULL, HTTP_QUICK, NO_SERVER, http
from octavo.bench.stats import LEAST_PAIRS
from octavo.config import ConfigError
from octavo.models.checkpoint import open_checkpoint

QUICK_ROUNDS = LEAST_PAIRS
FULL_ROUNDS = 10
_SMALL = "octavo"
WAYS = ("offline", "http")


@dataclass(frozen=True)
class Source:
    """The model that all forms are made from."""

    path: Path
    vocab: int
    max_context: int
    kind: str
    """The type of most of its matrices, which names the form that is the file itself."""


@dataclass(frozen=True)
class Plan:
    """Ready to run."""

    contenders: tuple[Contender, ...]
    works: tuple[Work, ...]
    room: Room
    environments: dict[str, Environment]
    problems: tuple[str, ...]


def read_source(path: Path) -> Source:
    """Refuses all but a GGUF file, for the other forms are made from one."""
    if path.suffix != ".gguf":
        raise ConfigError(f"--model {path} is no GGUF file; octavo convert would make one")
    checkpoint = open_checkpoint(path)
    try:
        types = Counter(kind for kind, shape in checkpoint.sources().values() if len(shape) > 1)
        spec = checkpoint.spec
        return Source(path, spec.vocab, spec.max_context, types.most_common(1)[0][0].lower())
    finally:
        checkpoint.close()


def choose_works(names: Sequence[str], quick: bool, ways: Sequence[str] = WAYS) -> tuple[Work, ...]:
    every = (*QUICK, *HTTP_QUICK) if quick else (*FULL, *HTTP_FULL)
    works = {work.name: work for work in every if work.way in ways}
    unknown = [name for name in names if name not in works]
    if unknown:
        raise ConfigError(f"--workloads {','.join(unknown)} is not known; one of {', '.join(works)} would work")
    return tuple(work for name, work in works.items() if not names or name in names)


def choose_forms(peers: Sequence[str], names: Sequence[str]) -> list[Form]:
    """names: FORM of every engine, or PEER:FORM. Octavo is always among the engines."""
    known = [form for forms in FORMS.values() for form in forms]
    for name in names:
        if not any(name in (form.name, f"{form.peer}:{form.name}") for form in known):
            offers = ", ".join(f"{form.peer}:{form.name}" for form in known)
            raise ConfigError(f"--forms {name} is not known; one of {offers} would work")
    peers = [_SMALL, *[peer for peer in PEERS if not peers or peer in peers]]
    return [form for form in known if form.peer in peers and _wanted(form, names)]


def _wanted(form: Form, names: Sequence[str]) -> bool:
    """An engine of which no form is named keeps all of its forms, unless plain names are given."""
    if not names or form.name in names or f"{form.peer}:{form.name}" in names:
        return True
    plain = any(":" not in name for name in names)
    return not plain and not any(name.startswith(f"{form.peer}:") for name in names)


def make_plan(
    source: Source, forms: Sequence[Form], works: tuple[Work, ...], threads: int, kv: str | None, say: Say
) -> Plan:
    """Makes the forms that are missing. kv: OpenVINO's KV precision; None is its default."""
    room = room_for(works, threads)
    if room.max_context > source.max_context:
        raise ConfigError(
            f"--workloads needs {room.max_context} tokens of context and {source.path.name} has {source.max_context}; "
            "--quick would work"
        )
    environments = {peer: found for peer in PEERS if (found := find(peer)) is not None}
    problems: dict[str, str] = {}
    contenders = []
    for form in forms:
        if form.peer != _SMALL and form.peer not in environments:
            problems[form.peer] = f"{form.peer} is not set up; octavo bench peers --setup {form.peer} would do it"
            continue
        try:
            path = prepare(form, source.path, environments, say)
        except FormError as error:
            problems[f"{form.peer}:{form.name}"] = f"{form.peer}: {error}"
            continue
        shown = source.kind if form.name == "file" else form.name
        for way in sorted({work.way for work in works}, reverse=True):
            if way == "http" and form.peer in NO_SERVER:
                problems[f"{form.peer} http"] = f"{form.peer} http: {NO_SERVER[form.peer]}"
                continue
            make = http if way == "http" else offline
            made = make(form.peer, shown, path, environments.get(form.peer), room)
            if form.peer == "openvino" and kv:
                made = replace(made, load={**made.load, "kv": kv})
            contenders.append(made)
    return Plan(tuple(contenders), works, room, environments, tuple(problems.values()))
