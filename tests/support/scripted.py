"""A server that answers a chat with the text of its last message: what the model says is up to the test.

The engine is the one that repeats (echo_engine.py), and the template tells it what. Each form of tool calls has a
template that shows it, for `--tool-parser auto` to find; the last one begins the answer with a thought.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.config import ServerConfig
from tests.support.serve import Serve
from tests.support.server import echo_config

FORMS = {
    "hermes": "<tool_call>{{ call }}</tool_call>",
    "mistral": "[TOOL_CALLS] [{{ call }}]",
    "llama3": '<|python_tag|>{"parameters": {{ call }}}',
    "json": "{{ call }}",
}
_SOURCE = """
{%- for tool in tools or [] %}{{ tool | tojson }}{{ "\\n" }}{% endfor -%}
{%- for turn in messages %}{{ turn.role ~ ": " ~ turn.content }}
{%- for call in turn.tool_calls or [] %}{{ call.function.name ~ call.function.arguments | tojson }}{% endfor %}
{%- endfor -%}
{%- if call is defined %}FORM{% endif -%}
<|endoftext|><|endoftext|>{{ messages[-1].content }}<|endoftext|>OPENING
"""


def write_scripted(folder: Path, model: Path, form: str, opening: str = "") -> Path:
    """A copy of a model's directory with such a template. opening: what the prompt ends with."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = _SOURCE.strip().replace("FORM", FORMS[form]).replace("OPENING", opening)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def scripted_config(path: Path, **server: Any) -> Serve:
    """The server of a directory that `write_scripted` made."""
    return replace(echo_config(path), server=ServerConfig(port=0, **server))
