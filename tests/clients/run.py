"""`make test-clients`: other people's programs, unmodified, against a real server with the default model.

Each client has an environment of its own below .venv-clients, with the version that is pinned here, and one script
beside this file that ends with status 0 where all it asked for came back right. A report is printed and left in
bars/clients.json. Needs a package index the first time only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from octavo.models.store import default_model
from tests.support.serve import Serve
from tests.support.server import ROOT, serving

SCRIPTS = Path(__file__).parent / "scripts"
ENVIRONMENTS = ROOT / ".venv-clients"
MODEL = "octavo"
_SECONDS = 300.0


@dataclass(frozen=True)
class Client:
    """One program."""

    name: str
    requirement: str
    script: str
    environment: tuple[tuple[str, str], ...] = ()
    """What it needs to work without the network."""


CLIENTS = (
    Client("openai", "openai==3.57.0", "use_openai.py"),
    Client("langchain-openai", "langchain-openai==1.7.4", "use_langchain.py"),
    Client("litellm", "litellm==1.110.2", "use_litellm.py", (("LITELLM_LOCAL_MODEL_COST_MAP", "True"),)),
    Client("llm", "llm==0.36", "use_llm.py"),
)


def prepare(client: Client) -> Path:
    """The client's interpreter; its environment is made where the pinned version is not there."""
    folder = ENVIRONMENTS / client.name
    python, stamp = folder / "bin" / "python", folder / ".requirement"
    if not stamp.is_file() or stamp.read_text() != client.requirement:
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", client.requirement], check=True)
        stamp.write_text(client.requirement)
    return python


def run(client: Client, python: Path, url: str) -> tuple[bool, float, str]:
    """Whether its script ended well, its seconds and what it said."""
    began = time.monotonic()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OPENAI_API_KEY")},
        **dict(client.environment),
        "OPENAI_API_KEY": "none",
        "OCTAVO_URL": f"{url}/v1",
        "OCTAVO_MODEL": MODEL,
    }
    done = subprocess.run(
        [python, SCRIPTS / client.script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return done.returncode == 0, time.monotonic() - began, done.stdout


def main(names: list[str]) -> int:
    """names: of clients; none is all of them. The exit status is 1 where one failed."""
    unknown = sorted(set(names) - {client.name for client in CLIENTS})
    if unknown:
        known = ", ".join(client.name for client in CLIENTS)
        print(f"there is no client {unknown[0]!r}; there are {known}", file=sys.stderr)
        return 2
    chosen = [client for client in CLIENTS if not names or client.name in names]
    pythons = [prepare(client) for client in chosen]
    path = default_model(lambda what, fraction: None)
    engine = EngineConfig(model=ModelConfig(path=str(path), name=MODEL), kv=KVConfig(size_tokens=16384))
    report = []
    with serving(Serve(engine, ServerConfig(port=0))) as server:
        for client, python in zip(chosen, pythons, strict=True):
            good, seconds, said = run(client, python, server.url)
            report.append({"client": client.requirement, "green": good, "seconds": round(seconds, 1)})
            print(f"{client.requirement:<28} {'green' if good else 'FAILED':<8} {seconds:6.1f} s", flush=True)
            if not good:
                print(said)
    (ROOT / "bars").mkdir(exist_ok=True)
    (ROOT / "bars" / "clients.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(entry["green"] for entry in report) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
