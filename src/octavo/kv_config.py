"""The configuration of keys and values, and what a token of context costs. Seen through octavo/config.py.

Frozen; checked and filled by `config.resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KVConfig:
    """Where keys and values live."""

    size_bytes: int | None = None
    """Bytes of the pool. None: chosen from free memory."""
    size_tokens: int | None = None
    """Tokens of the pool; instead of `size_bytes` (tests, tiny machines)."""
    block_size: int = 32
    """Tokens a block, a multiple of 32."""
    paged: bool = True
    """Off: one contiguous block of `max_model_len` a request."""
    prefix_cache: bool = True
    """Off: every prompt is computed from its first token."""
    prefix_scope: str = "tenant"
    """"tenant": tenants share no cached block; "shared": they share all of them (`cache_salt` still keeps apart)."""
    eviction: str = "cost"
    """"cost": what costs most to compute again stays longest; "lru": what was used last does."""
    disk: str | None = None
    """Directory that keeps evicted blocks. None: evicted blocks are gone."""
    disk_bytes: int | None = None
    """Bytes of its files at most. None: DISK_BYTES where `disk` is set."""
    verify_prefix_cache: bool = False
    """On: every hit is compared with a second record of what was published (debugging)."""
    pin_tokens: int = 0
    """Tokens of cached prefixes that may be pinned; requests count as if they were. 0: none."""


def most_live(window: int, lead: int, block_size: int) -> int:
    """Blocks that a request holds at once at most where layers see `window` positions.

    lead: positions of one request that may be submitted and not yet retired.
    """
    return -(-(window + lead) // block_size) + 1


@dataclass(frozen=True)
class KVShape:
    """What a token of context costs, and in which layers it is forgotten."""

    full_bytes: int
    """Bytes a token over all layers that see the whole context."""
    windows: tuple[tuple[int, int], ...] = ()
    """(window, bytes a token) of each group of layers that see the last `window` positions."""

    @property
    def bytes_per_token(self) -> int:
        """Over all layers: what a text costs that is shorter than the windows."""
        return self.full_bytes + sum(size for _, size in self.windows)
