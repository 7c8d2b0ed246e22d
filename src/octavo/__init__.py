"""Octavo: an LLM serving engine.

`from octavo import LLM` runs a model in this process; the `octavo` command serves one over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "__version__"]


def __getattr__(name: str) -> Any:
    """Loads `LLM` on first use, so that importing octavo is instant."""
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
