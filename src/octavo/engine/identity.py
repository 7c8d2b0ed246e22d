"""Whether an engine that was started again is the one that was served before.

Requests go on with the tokens they have: a model with other weights, another vocabulary or another arithmetic would
answer the second half of them. What may differ is what the machine decides, such as the pool's size. Owns nothing; off
switch: none.
"""

from __future__ import annotations

from octavo.types import ModelInfo

_FILES = {
    "weights_id": "weights",
    "tokenizer_id": "tokeniser",
    "architecture": "architecture",
    "vocab_size": "vocabulary",
    "num_tokens": "vocabulary",
    "eos_token_ids": "end-of-sequence ids",
    "kv_groups": "layers",
    "max_context": "context",
    "sampling": "suggested sampling",
}


def difference(first: ModelInfo, now: ModelInfo, path: str) -> str | None:
    """One sentence for the user where `now` cannot go on for `first`; `path` is what is served."""
    differ = [word for name, word in _FILES.items() if getattr(first, name) != getattr(now, name)]
    if differ:
        return (
            f"the model's files changed while it was served (other {', '.join(dict.fromkeys(differ))}): start the "
            f"server again to serve what {path or 'the default model'} holds now"
        )
    if first.numerics_id != now.numerics_id:
        return (
            f"the engine computes in another way after its restart ({now.numerics_id} instead of "
            f"{first.numerics_id}): start the server again"
        )
    return None
