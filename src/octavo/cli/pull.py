"""`octavo pull`: downloads a model, or renews it, and says what it is. A model that could not start is told at once."""

from __future__ import annotations

from collections.abc import Callable

from octavo.cli.model_facts import ModelFacts, lines, text_facts
from octavo.models.inspection import inspect
from octavo.models.locate import fetch_model
from octavo.models.spec import ModelError


def pull(name: str, say: Callable[[str], None], say_error: Callable[[str], None]) -> None:
    """Raises ModelError where the model cannot be fetched, or is none that can be served."""
    try:
        found = fetch_model(name)
    except KeyboardInterrupt:
        say_error("octavo: stopped; what has come is kept, and the same command goes on")
        raise SystemExit(130) from None
    seen, text = inspect(found.path), text_facts(found.path)
    refusal = seen.refusal or text.refusal
    say(found.name or found.path.stem)
    say(f"  where      {found.path}")
    for line in lines(ModelFacts(seen, text, None, refusal)):
        say(f"  {line}")
    if refusal is not None:
        raise ModelError(f"it is here, but it cannot be served: {refusal}")
