"""`convert`: one model into the other format, or into another type of numbers.

The new model is written beside its destination under a temporary name, opened as the engine would, compared with the
source (sizes, constants, tokeniser), and only then renamed; whatever fails leaves nothing behind. Memory: one tensor.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.models.checkpoint import open_checkpoint
from octavo.models.convert import metadata, settings
from octavo.models.convert.files import TensorFile, open_gguf_file, open_safetensors_file
from octavo.models.convert.plan import Plan, check_type, plan
from octavo.models.convert.tensors import Progress, stream, write_floats
from octavo.models.convert.vocabulary import check
from octavo.models.convert.words import in_words_of, named, unreadable, unsaid
from octavo.models.gguf_parts import gguf_of
from octavo.models.hub_errors import megabytes
from octavo.models.names import Naming
from octavo.models.registry import architecture_of
from octavo.models.spec import Checkpoint, ModelError, ModelSpec
from octavo.models.tokenizer import load_tokenizer
from octavo.ops.encode import TYPES


@dataclass(frozen=True)
class Result:
    """What was made, and what a user should know of it."""

    path: Path
    nbytes: int
    notes: tuple[str, ...]


def convert(source: Path, target: Path, to: Naming | None, kind: str | None, progress: Progress) -> Result:
    """`to`: "gguf" or "hf"; None: as the target's name ends. `kind`: the type of matrices; None keeps them."""
    naming: Naming = to or ("gguf" if target.suffix == ".gguf" else "hf")
    check_type(kind, naming, TYPES)
    if naming == "gguf" and target.suffix != ".gguf":
        raise ModelError(f"{target} cannot be a GGUF file's name; {target}.gguf would work")
    _refuse_existing(target)
    checkpoint = open_checkpoint(source)
    try:
        spec = in_words_of(checkpoint.spec, naming, source, (gguf_of(source) is None) == (naming == "gguf"))
        made = plan(architecture_of(spec).tensors(spec), checkpoint.sources(), naming, kind)
        _check_room(target, made.nbytes)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".octavo-convert-") as folder:
            path = Path(folder) / target.name
            write = _gguf if naming == "gguf" else _directory
            notes = write(checkpoint, source, spec, made, path, progress)
            notes += _compare(spec, naming, source, path)
            _refuse_existing(target)
            os.rename(path, target)
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        checkpoint.close()
    return Result(target, made.nbytes, (*checkpoint.notes, *made.notes, *notes))


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise ModelError(f"{target} exists already; name a new one, or remove it")
    if not target.parent.is_dir():
        raise ModelError(f"{target.parent} is no directory; make it first")


def _check_room(target: Path, nbytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < nbytes:
        raise ModelError(f"{target} would take {megabytes(nbytes)}, {target.parent} has {megabytes(free)} left")


def _gguf(
    checkpoint: Checkpoint, source: Path, spec: ModelSpec, made: Plan, path: Path, progress: Progress
) -> list[str]:
    values, extra = metadata.for_gguf(checkpoint, source, spec)
    targets = (*made.targets, *(settings.float_target(name, numbers) for name, numbers in extra.items()))
    file = open_gguf_file(path, values | metadata.file_facts(made), targets)
    write_floats(extra, file)
    return _stream(checkpoint, made, file, progress)


def _directory(
    checkpoint: Checkpoint, source: Path, spec: ModelSpec, made: Plan, path: Path, progress: Progress
) -> list[str]:
    path.mkdir()
    metadata.write_directory(checkpoint, source, spec, made, path)
    return _stream(checkpoint, made, open_safetensors_file(path / "model.safetensors", made.targets), progress)


def _stream(checkpoint: Checkpoint, made: Plan, file: TensorFile, progress: Progress) -> list[str]:
    done: Callable[[], None] = file.abandon
    try:
        notes = stream(checkpoint, made, file, progress)
        done = file.close
    finally:
        done()
    return notes


def _compare(spec: ModelSpec, naming: Naming, source: Path, path: Path) -> list[str]:
    """Opens the result; ModelError where it is another model."""
    try:
        opened = open_checkpoint(path)
        opened.close()
        tokenizer = load_tokenizer(path)
    except ModelError as error:
        raise unreadable(naming, source, path, error) from error
    if other := settings.differences(spec, opened.spec):
        raise unsaid(naming, source, named(other))
    return check(load_tokenizer(source), tokenizer, str(source))
