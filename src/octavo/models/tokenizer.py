"""Text to token ids and back, over the `tokenizers` library.

Owns two encoders that share one vocabulary: one in which the text of a control token becomes that token (templates),
and one in which it is ordinary text (whatever users write). Both are immutable after loading and safe to call from
several threads. Made by `load_tokenizer` from the same path as the model, without reading its weights.
Off switch: none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer as Backend

from octavo.models.spec import ModelError

TEXT = False
TEMPLATE = True


@dataclass(frozen=True)
class TokenizerParts:
    """What a file says of its tokeniser."""

    backend: Backend
    """Control tokens become themselves."""
    plain: Backend
    """Control tokens' text is ordinary text."""
    special_ids: frozenset[int]
    num_tokens: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    """Whether the model expects a BOS before plain text (chat templates write their own)."""
    chat_template: str | None
    byte_level: bool
    special_strings: dict[str, str] = field(default_factory=dict)
    """"bos_token", "eos_token" and so on -> text, as templates use them."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokeniser of a .gguf file or of a model directory; ModelError says what is missing."""
    path = Path(path)
    if path.is_dir():
        from octavo.models.tokenizer_hf import read_parts

        return Tokenizer(read_parts(path))
    from octavo.models.tokenizer_gguf import read_parts as read_gguf_parts

    return Tokenizer(read_gguf_parts(path))


class Tokenizer:
    """Encodes, decodes, and knows the control tokens."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._bytes: dict[int, bytes] = {}
        self._special_texts = tuple(
            text for i in sorted(parts.special_ids) if (text := parts.backend.id_to_token(i)) is not None
        )
        self.num_tokens = parts.num_tokens
        self.eos_ids = parts.eos_ids
        self.bos_id = parts.bos_id
        self.add_bos = parts.add_bos
        self.chat_template = parts.chat_template
        self.special_strings = dict(parts.special_strings)

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool = False) -> list[int]:
        """Ids of a text. Only with `parse_special` does the text of a control token become that token."""
        text = _well_formed(text)
        encoder = self._parts.backend if parse_special else self._parts.plain
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        if add_bos and self.bos_id is not None:
            return [self.bos_id, *ids]
        return ids

    def encode_chat(self, segments: Sequence[tuple[str, bool]]) -> list[int]:
        """Ids of a rendered chat: (text, whether the template wrote it) in order.

        Where no text of a user holds a control token's, the joined text is encoded whole, so that merges cross the
        borders as they do in other engines. Else the user's texts are encoded as ordinary text, each on its own:
        the borders are then borders of tokens too.
        """
        if not any(self.holds_special(text) for text, kind in segments if kind is TEXT):
            return self.encode("".join(text for text, _ in segments), parse_special=True)
        ids: list[int] = []
        for text, kind in _merged(segments):
            ids += self.encode(text, parse_special=kind is TEMPLATE)
        return ids

    def holds_special(self, text: str) -> bool:
        """Whether a text contains the text of a control token."""
        return any(special in text for special in self._special_texts)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD, ids that no token has are skipped."""
        known = [i for i in ids if 0 <= i < self.num_tokens]
        if not self._parts.byte_level:
            return str(self._parts.backend.decode(known, skip_special_tokens=skip_special))
        kept = (i for i in known if not (skip_special and self.is_special(i)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for; empty for ids that no token has."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._token_bytes(token)
        return known

    def _token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.num_tokens:
            return b""
        text = self._parts.backend.id_to_token(token)
        if text is None:
            return b""
        if token in self._parts.special_ids:
            return str(text).encode()
        return _byte_level(text) if self._parts.byte_level else _sentence_piece(text)

    def is_special(self, token: int) -> bool:
        """Whether an id is a control token, left out of answers."""
        return token in self._parts.special_ids

    def token_id(self, text: str) -> int | None:
        """The id of the token with this exact text in the vocabulary."""
        found = self._parts.backend.token_to_id(text)
        return None if found is None else int(found)

    def to_json(self) -> str:
        """The tokeniser in the format of tokenizer.json."""
        return str(self._parts.backend.to_str())


def _merged(segments: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Neighbours of one kind joined, empty ones dropped."""
    merged: list[tuple[str, bool]] = []
    for text, kind in segments:
        if not text:
            continue
        if merged and merged[-1][1] is kind:
            merged[-1] = (merged[-1][0] + text, kind)
        else:
            merged.append((text, kind))
    return merged


def _well_formed(text: str) -> str:
    """Lone surrogates (JSON allows them, UTF-8 does not) become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


def _byte_level(text: str) -> bytes:
    """A token with a character outside the alphabet (an added, ordinary one) stands for its own text."""
    try:
        return bytes(_ALPHABET[character] for character in text)
    except KeyError:
        return text.encode()


def _sentence_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()


def share_plain(backend: Backend, special_ids: frozenset[int]) -> Backend:
    """The second encoder: the first one's model and rules, without control tokens."""
    added = backend.get_added_tokens_decoder()
    if set(added) <= special_ids:
        plain = Backend(backend.model)  # shares the vocabulary
        if backend.normalizer is not None:
            plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            plain.pre_tokenizer = backend.pre_tokenizer
        if backend.decoder is not None:
            plain.decoder = backend.decoder
        return plain
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["id"] in special_ids
    plain = Backend.from_str(json.dumps(content))
    plain.encode_special_tokens = True
    return plain


def require(condition: bool, message: str) -> None:
    """A check of a file's content."""
    if not condition:
        raise ModelError(message)
