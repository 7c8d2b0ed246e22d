"""Keys of cached blocks: what a block's content depends on, and nothing else.

A key is a SHA-256 over typed, length-framed parts. The root key names everything that all blocks of a request
depend on (weights, numerics, block size, adapter, tenant, salt); each block's key chains its parent's key with the
block's own token ids. Two requests share a block only where the keys are equal, and the prefix cache compares the
tokens and the parent as well, so that not even a broken hash can give a request somebody else's pages.

Life: one `KeyChain` a request, extended by one hash whenever a block fills, kept over a preemption.
There is no off switch: `kv.prefix_cache` off means that no key is ever asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class KeyContext:
    """What decides whether two requests may share pages, besides their tokens."""

    weights_id: str
    numerics_id: str
    block_size: int
    adapter: str = ""
    tenant: str = ""
    salt: str = ""


def _frame(tag: bytes, payload: bytes) -> bytes:
    """Tag and length before the payload, so that no two lists of parts have the same bytes."""
    return struct.pack("<BQ", len(tag), len(payload)) + tag + payload


def _digest(data: bytes) -> bytes:
    return sha256(data).digest()


def root_key(context: KeyContext) -> bytes:
    """The parent of a request's first block."""
    parts = (
        _frame(b"root", b"octavo-kv-1"),
        _frame(b"weights", context.weights_id.encode()),
        _frame(b"numerics", context.numerics_id.encode()),
        _frame(b"block_size", struct.pack("<q", context.block_size)),
        _frame(b"adapter", context.adapter.encode()),
        _frame(b"tenant", context.tenant.encode()),
        _frame(b"salt", context.salt.encode()),
    )
    return _digest(b"".join(parts))


TOKEN_BYTES = 8
"""Of `pack_tokens`."""


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as bytes, the same on every machine."""
    return struct.pack(f"<{len(tokens)}q", *tokens)


def block_key(parent: bytes, packed: bytes) -> bytes:
    """The key of the block that holds the packed tokens and follows the block `parent`."""
    return _digest(_frame(b"parent", parent) + _frame(b"tokens", packed))


class KeyChain:
    """The keys of one request's full blocks, computed when first asked for."""

    __slots__ = ("_keys", "context")

    def __init__(self, context: KeyContext) -> None:
        self.context = context
        self._keys = [root_key(context)]

    def above(self, index: int, tokens: Sequence[int]) -> bytes:
        """Key of the block before block `index`, or the root key."""
        return self.key(index - 1, tokens) if index else self._keys[0]

    def key(self, index: int, tokens: Sequence[int]) -> bytes:
        """Key of block `index` of the request's `tokens` (append-only; the block must be full)."""
        size = self.context.block_size
        keys = self._keys
        while len(keys) <= index + 1:
            start = (len(keys) - 1) * size
            block = tokens[start : start + size]
            assert len(block) == size, f"block {len(keys) - 1} is not full: {len(block)} of {size} tokens"
            keys.append(block_key(keys[-1], pack_tokens(block)))
        return keys[index + 1]
