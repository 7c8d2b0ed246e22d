"""The `llm` command, with a server of its own configuration file: a prompt streamed and whole, and its log."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

command = Path(sys.executable).parent / "llm"
with tempfile.TemporaryDirectory() as folder:
    models = [{"model_id": "served", "model_name": os.environ["OCTAVO_MODEL"], "api_base": os.environ["OCTAVO_URL"]}]
    # JSON is YAML.
    Path(folder, "extra-openai-models.yaml").write_text(json.dumps(models))

    def llm(*arguments: str) -> str:
        environment = {**os.environ, "LLM_USER_PATH": folder}
        done = subprocess.run([command, *arguments], env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    options = ("-m", "served", "-o", "temperature", "0", "-o", "max_tokens", "12", "Name a colour.")
    streamed = llm(*options)
    assert streamed
    assert llm("--no-stream", *options) == streamed
    assert json.loads(llm("logs", "--json", "-n", "1"))[0]["response"].strip() == streamed
