"""The chat templates of a model directory, by name.

The default one is chat_template.jinja, or the directory's only .jinja file, else tokenizer_config.json's: a text, or
the entry named "default". Named ones are the other entries there, and the files in additional_chat_templates/.
Owns nothing; off switch: `--chat-template FILE`.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from octavo.models.files import listing, present
from octavo.models.jsonfile import read_template

_MAX_NAMED = 64


def hf_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Name -> template; `config` is tokenizer_config.json."""
    found = _configured(config.get("chat_template"))
    files = listing(folder / "additional_chat_templates", "*.jinja")
    found |= {file.stem: read_template(file) for file in islice(files, _MAX_NAMED)}
    named = folder / "chat_template.jinja"
    own = [named] if present(named) else listing(folder, "*.jinja")
    if len(own) == 1:
        found["default"] = read_template(own[0])
    return found


def _configured(template: Any) -> dict[str, str]:
    """Without an entry named "default", the first one serves as it."""
    if isinstance(template, str):
        return {"default": template}
    found: dict[str, str] = {}
    for entry in islice(template, _MAX_NAMED) if isinstance(template, list) else ():
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if isinstance(name, str) and isinstance(text, str):
            found[name] = text
    if found:
        found.setdefault("default", next(iter(found.values())))
    return found
