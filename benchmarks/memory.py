"""Memory while a model is loaded: the engine's high-water mark beside what it keeps."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.serving import ServerProcess
from octavo.models.store import default_model

LIMIT = 1.15


def engine_memory(server: ServerProcess) -> dict[str, int]:
    """Bytes of VmHWM and VmRSS of the engine's process."""
    engine = next(process for process in server.processes() if "octavo.engine" in " ".join(process.cmdline()))
    status = Path(f"/proc/{engine.pid}/status").read_text()
    return {
        name: int(value) * 1024
        for name, value in re.findall(r"^(VmHWM|VmRSS|RssFile|RssAnon):\s+(\d+) kB", status, re.M)
    }


def load_memory(short: bool) -> dict[str, Any]:
    """The default model with nothing packed yet, and a KV pool of 256 MB."""
    model = default_model(lambda what, fraction: None)
    with tempfile.TemporaryDirectory() as folder:
        with ServerProcess([str(model), "--kv-memory", "256M"], env={"OCTAVO_CACHE": folder}) as server:
            memory = engine_memory(server)
    ratio = memory["VmHWM"] / memory["VmRSS"]
    return {
        "bar": f"high-water mark under {LIMIT} times the resident size at ready",
        "figure": f"{ratio:.3f} times: {memory['VmHWM'] / 1e6:.0f} MB against {memory['VmRSS'] / 1e6:.0f} MB",
        "met": ratio < LIMIT,
        "details": memory,
    }
