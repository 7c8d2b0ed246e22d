"""The forms in which each engine takes a model: made once from the model's GGUF file, kept in the cache by its digest.

Owns `peers/forms/DIGEST/` of the cache. A form is made beside its name and renamed when it is whole. All forms hold
the same weights, rounded as their type says: bf16 from what the file's blocks mean, the others from bf16.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from octavo.bench.peers.environments import Environment, Say, run_guarded
from octavo.bench.peers.guard import Guard
from octavo.models.convert.run import convert
from octavo.models.digest import file_digest
from octavo.models.spec import ModelError
from octavo.models.store import cache_dir


class FormError(RuntimeError):
    """One line: which form cannot be made, and why."""


@dataclass(frozen=True)
class Form:
    """A model for one engine."""

    peer: str
    name: str
    """As it is selected and shown; "file" is the model file itself."""
    path: str
    """Under the forms of a model; empty: the file itself."""


_BF16 = "bf16"
# vLLM's fp32 computes in float32 with the same weights, for CPUs without bf16 instructions.
FORMS: dict[str, tuple[Form, ...]] = {
    "octavo": (Form("octavo", "file", ""), Form("octavo", "bf16", _BF16)),
    "vllm": (Form("vllm", "bf16", _BF16), Form("vllm", "fp32", _BF16)),
    "openvino": tuple(Form("openvino", name, f"openvino-{name}") for name in ("fp16", "int8", "int4")),
    "llamacpp": (
        Form("llamacpp", "file", ""),
        Form("llamacpp", "q8_0", "q8_0.gguf"),
        Form("llamacpp", "bf16", "bf16.gguf"),
    ),
}
"""By engine, in the order of the table."""


def forms_folder(source: Path) -> Path:
    return cache_dir() / "peers" / "forms" / file_digest(source, cache_dir())[:16]


def prepare(form: Form, source: Path, environments: Mapping[str, Environment], say: Say) -> Path:
    """The form's path; made where it is not there yet. FormError where it cannot be."""
    if not form.path:
        return source
    folder = forms_folder(source)
    target = folder / form.path
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    base = prepare(FORMS["octavo"][1], source, environments, say) if form.peer == "openvino" else source
    with FileLock(f"{target}.lock"):
        if not target.exists():
            say(f"{form.peer}: making the form {form.name} of {source.name}")
            _make(form, base, target, environments)
    return target


def _make(form: Form, source: Path, target: Path, environments: Mapping[str, Environment]) -> None:
    if form.peer == "openvino":
        _export(form.name, source, target, environments["openvino"])
        return
    kind = "BF16" if form.path == _BF16 else form.name.upper()
    try:
        convert(source, target, None, kind, lambda what, share: None)
    except ModelError as error:
        raise FormError(f"the form {form.name} of {source.name} cannot be made: {error}") from error


def _export(kind: str, source: Path, target: Path, environment: Environment) -> None:
    """OpenVINO's intermediate form, through the command of optimum-intel."""
    log, part = target.with_suffix(".log"), target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    command = [str(environment.python.with_name("optimum-cli")), "export", "openvino", "--model", str(source)]
    command += ["--task", "text-generation-with-past", "--weight-format", kind]
    if kind == "int4":
        command += ["--group-size", "64", "--ratio", "1.0"]
    with Guard() as guard:
        code = run_guarded([*command, str(part)], log, guard, HF_HUB_OFFLINE="1")
    if code != 0:
        raise FormError(f"optimum-cli ended with status {code} at the form {kind}; its log is {log}")
    part.rename(target)
