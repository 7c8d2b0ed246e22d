"""Which proposers fit a model, and why not; for `octavo doctor`."""

from __future__ import annotations

from octavo.models.spec import ModelSpec


def fits(spec: ModelSpec) -> dict[str, str]:
    """Proposer -> "fits", or what stands against it."""
    return {
        "ngram": "fits",
        "draft model": "not built",
        "self-draft": "not built",
        "EAGLE-3": f"not built (no heads for {spec.architecture} can be loaded)",
    }


def line(spec: ModelSpec) -> str:
    """Of the report."""
    found = fits(spec)
    good = ", ".join(name for name, what in found.items() if what == "fits")
    rest = ", ".join(name for name, what in found.items() if what != "fits")
    return f"drafts     {good} (--speculative {good}) fits, with every setting; {rest} are not built"
