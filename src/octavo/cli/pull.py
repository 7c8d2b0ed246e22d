"""`octavo pull`: downloads a model, or renews it, and says what it is. A model that could not start is told at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod

from octavo.models.checkpoint import open_checkpoint
from octavo.models.locate import Located, fetch_model
from octavo.models.spec import Checkpoint
from octavo.models.tokenizer import load_tokenizer


def pull(name: str, say: Callable[[str], None]) -> None:
    """Raises ModelError where the model cannot be fetched, or is none that can be served."""
    found = fetch_model(name)
    load_tokenizer(found.path)
    checkpoint = open_checkpoint(found.path)
    try:
        for line in _summary(found, checkpoint):
            say(line)
    finally:
        checkpoint.close()


def _summary(found: Located, checkpoint: Checkpoint) -> list[str]:
    spec, sources = checkpoint.spec, checkpoint.sources()
    types = Counter(source for source, _ in sources.values())
    parameters = sum(prod(shape) for _, shape in sources.values())
    return [
        found.name or checkpoint.name,
        f"  where     {found.path}",
        f"  model     {spec.architecture}, {parameters / 1e6:.1f} million parameters, {spec.layers} layers, "
        f"context {spec.max_context}",
        f"  weights   {checkpoint.total_bytes / 1e6:.1f} MB: "
        + ", ".join(f"{count} tensors {source}" for source, count in types.most_common()),
    ]
