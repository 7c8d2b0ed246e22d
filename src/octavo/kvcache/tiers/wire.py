"""The file of one block: a header, then the block's wire form.

    magic, version, sizes     what it is
    identity                  digest of weights and arithmetic: whose numbers these are
    key, above, tokens        which block: key = digest(above, tokens), checked when read
    group, dtype, shape       [layer][key, value][head][position][dim], the wire form of `types.BlockPages`
    checksum, digest          of the payload (64 bits, fast), of all of the header before it (BLAKE2b)

The header fills whole pages of 4096 bytes, so that the payload may be read past the page cache. Nothing in a file is
believed before `verify` has accepted it. Owns nothing; there is no off switch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b, sha256

from octavo.kvcache.keys import block_key
from octavo.types import BlockShape

MAGIC = b"OCTAVOKV"
VERSION = 1
_FIXED = struct.Struct("<8sIIQQ32s32s32sI8sIIII")
"""magic, version, header bytes, payload bytes, payload checksum, identity, key, above, group, dtype, shape."""
_DIGEST = 16
_PAGE = 4096
_TOKEN = 8
"""Bytes of a token id."""


class WireError(ValueError):
    """A file that is not the block it should be; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Cached:
    """A full block as the prefix cache knows it."""

    key: bytes
    above: bytes
    """Key of the block before it, or the root key."""
    packed: bytes
    """Its tokens (keys.pack_tokens)."""
    block: int
    """Where its content lies, or shall lie."""


def identity_of(weights_id: str, numerics_id: str) -> bytes:
    """Whose numbers: 32 bytes."""
    parts = (weights_id.encode(), numerics_id.encode())
    return sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()


def header_bytes(shape: BlockShape) -> int:
    """Size of the header of such a block's file."""
    return -(-(_FIXED.size + _TOKEN * shape.tokens + _DIGEST) // _PAGE) * _PAGE


def make_header(identity: bytes, group: int, shape: BlockShape, cached: Cached, checksum: int) -> bytes:
    """The header of a block's file, padded to its size. checksum: of the payload."""
    size = header_bytes(shape)
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        size,
        shape.bytes,
        checksum,
        identity,
        cached.key,
        cached.above,
        group,
        shape.dtype.encode(),
        shape.layers,
        shape.heads,
        shape.tokens,
        shape.dim,
    )
    body = fixed + cached.packed
    assert len(cached.packed) == _TOKEN * shape.tokens, "a block on disk is full"
    return (body + blake2b(body, digest_size=_DIGEST).digest()).ljust(size, b"\0")


def verify(
    header: bytes | memoryview, identity: bytes, group: int, shape: BlockShape, cached: Cached, checksum: int
) -> None:
    """Raises WireError unless header and payload (whose checksum is given) are those of the block asked for."""
    if len(header) < _FIXED.size or bytes(header[: len(MAGIC)]) != MAGIC:
        raise WireError("it is no file of a KV block")
    read = _FIXED.unpack_from(header)
    if read[1] != VERSION:
        raise WireError(f"it is of version {read[1]}, not {VERSION}")
    expected = make_header(identity, group, shape, cached, read[4])
    if bytes(header) != expected:
        raise WireError(_difference(read, _FIXED.unpack_from(expected)))
    if block_key(cached.above, cached.packed) != cached.key:
        raise WireError("its key does not name its tokens")
    if read[4] != checksum:
        raise WireError("its content is damaged")


def _difference(read: tuple[object, ...], expected: tuple[object, ...]) -> str:
    names = {5: "another model or arithmetic", 6: "another block", 7: "another block", 8: "another group of layers"}
    for index, what in names.items():
        if read[index] != expected[index]:
            return f"it holds {what}"
    if read[9:] != expected[9:]:
        return "its shape is another"
    return "its header is damaged"
