"""How a model of the Hugging Face Hub is named, and where the library's cache keeps it. Off switch: name a path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HubName:
    """A model of the Hub, as it was named."""

    repo: str
    """ORG/NAME."""
    revision: str | None = None
    file: str | None = None
    """A GGUF file, or a part of its name."""

    @property
    def spelt(self) -> str:
        """Without the file."""
        return f"hf:{self.repo}" + (f"@{self.revision}" if self.revision else "")

    def __str__(self) -> str:
        return self.spelt + (f":{self.file}" if self.file else "")


def hub_cache() -> Path:
    """The directory that the library keeps repositories in."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def repo_folder(repo: str) -> Path:
    return hub_cache() / ("models--" + repo.replace("/", "--"))
