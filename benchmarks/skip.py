"""How a row says that it may not or cannot run here, and why."""

from __future__ import annotations


class Skipped(Exception):
    """The message is one sentence for the user; the row neither meets nor misses its bar."""
