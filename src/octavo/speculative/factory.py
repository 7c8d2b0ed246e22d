"""Makes the proposer that the configuration asks for."""

from __future__ import annotations

from octavo.config import SpeculativeConfig
from octavo.speculative.ngram import NgramProposer
from octavo.speculative.proposer import NoProposer, Proposer


def make_proposer(config: SpeculativeConfig) -> Proposer:
    """config is resolved."""
    return NgramProposer(config.draft_from == "tenant") if config.on else NoProposer()
