"""Which forward pass belongs to which architecture. A new model is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.models import llama
from octavo.models.spec import ModelError

Forward = Callable[[Any, Any, int], Any]
"""(op set, model spec, number of ids that may be drawn) -> logits."""

ARCHITECTURES: dict[str, Forward] = {"llama": llama.forward}


def forward_of(architecture: str) -> Forward:
    try:
        return ARCHITECTURES[architecture]
    except KeyError:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"architecture {architecture!r} is not supported; supported are: {known}") from None
