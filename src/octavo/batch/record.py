"""What an output was begun with, in a small file beside it, `OUTPUT.run`: so that a run goes on only as it began.

Life: written whole, and safely on disk, before the first line of the output; read by the next run, which is refused in
one sentence where input, settings or model are others. It stays beside a finished output, so that the same command then
says that all is done. Off: `--overwrite` begins anew, and an output that is a pipe has none.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.batch.source import Survey
from octavo.config import ConfigError, ModelConfig
from octavo.types import ModelInfo

SUFFIX = ".run"
NOT_GIVEN = "not given"
_FORM = 1


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """All of a model that an answer depends on."""

    name: str
    weights: str
    tokenizer: str
    numerics: str
    template: str
    """The flag and, where it names a file, the digest of what is in it."""
    sampling: str
    """What the model suggests where a line says nothing."""
    max_model_len: int

    @classmethod
    def of(cls, config: ModelConfig, info: ModelInfo, max_model_len: int) -> Model:
        template = config.chat_template or ""
        file = Path(template).expanduser()
        if template and file.is_file():
            template += " " + hashlib.sha256(file.read_bytes()).hexdigest()
        return cls(
            name=info.name,
            weights=info.weights_id,
            tokenizer=info.tokenizer_id,
            numerics=info.numerics_id,
            template=template,
            sampling=msgspec.json.encode(info.sampling.chosen()).decode(),
            max_model_len=max_model_len,
        )


_MODEL_WORDS = {
    "name": "the model's name",
    "weights": "the model's weights",
    "tokenizer": "the model's tokeniser",
    "numerics": "the arithmetic (such as --precision)",
    "template": "--chat-template",
    "sampling": "the model's suggested sampling (such as --generation-config)",
    "max_model_len": "--max-model-len",
}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One run's terms."""

    form: int = _FORM
    sha256: str
    """Of the input."""
    settings: dict[str, str]
    """Flag -> its value in words."""
    model: Model | None = None
    """None: not yet known, for the model was never ready."""

    @classmethod
    def begin(cls, found: Survey, settings: dict[str, str]) -> Record:
        """The terms, as far as they are known before the model is loaded."""
        return cls(sha256=found.sha256, settings=settings)

    def with_model(self, model: Model) -> Record:
        return msgspec.structs.replace(self, model=model)


@dataclass(frozen=True)
class RecordFile:
    """The record of one output."""

    output: Path

    @property
    def path(self) -> Path:
        return self.output.with_name(self.output.name + SUFFIX)

    def read(self) -> Record | None:
        """None where there is none. ConfigError where it is no record."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            found = msgspec.json.decode(content, type=Record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} is no record of a run ({error}); {_ANEW}") from None
        if found.form != _FORM:
            raise ConfigError(f"{self.path} was written by another version of Octavo; {_ANEW}")
        return found

    def write(self, record: Record) -> None:
        """All of it or nothing, and on disk before this returns."""
        part = self.path.with_name(self.path.name + ".part")
        with part.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)
        sync_directory(self.path.parent)

    def check(self, before: Record, now: Record) -> None:
        """ConfigError where a run on other terms began the output."""
        if before.sha256 != now.sha256:
            raise ConfigError(f"{self.output} was begun with another INPUT, or INPUT was changed since; {_ANEW}")
        for flag in sorted(before.settings.keys() | now.settings.keys()):
            self._same(flag, before.settings.get(flag, NOT_GIVEN), now.settings.get(flag, NOT_GIVEN))
        if before.model is None or now.model is None:
            return
        for field, words in _MODEL_WORDS.items():
            self._same(words, str(getattr(before.model, field)), str(getattr(now.model, field)))

    def _same(self, what: str, before: str, now: str) -> None:
        if before != now:
            raise ConfigError(
                f"{self.output} was begun with another value of {what}: {_shown(before)}, which now is {_shown(now)}; "
                f"the same, {_ELSE}"
            )


_ELSE = "or another -o, or --overwrite, which begins anew, would work"
_ANEW = "another -o would work, or --overwrite, which begins anew"


def _shown(value: str) -> str:
    return value if len(value) <= 60 else value[:57] + "..."


def sync_directory(path: Path) -> None:
    """A file's name is on disk only once its directory is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
