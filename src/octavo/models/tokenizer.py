"""Text to token ids and back, over the `tokenizers` library.

Owns two encoders that share one vocabulary: one in which the text of a control token becomes that token (templates),
and one in which it is ordinary text (whatever users write). Both are immutable after loading and safe to call from
several threads. Made by `load_tokenizer` from the same path as the model, without reading its weights.
Off switch: none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.models.gguf_parts import gguf_of
from octavo.models.spec import ModelError

LONG_TEXT = 1024
"""Characters from which on a text is encoded by a call that holds up no other thread."""


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
    chat_templates: dict[str, str]
    """Name -> template; "default" is the one of an ordinary chat."""
    byte_level: bool
    """Tokens are written in the byte alphabet; else as SentencePiece does."""
    drops_space: bool = False
    """Encoding puts a space before the text, and decoding drops it."""
    inner: Backend | None = None
    """`plain` for text behind a control token, where only text at the start is given a space in front."""
    unused_ids: frozenset[int] = frozenset()
    """Ids within the vocabulary that stand for nothing."""
    special_strings: dict[str, str] = field(default_factory=dict)
    """"bos_token", "eos_token" and so on -> text, as templates use them."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokeniser of a .gguf file or of a model directory; ModelError says what is missing."""
    path = Path(path)
    file = gguf_of(path)
    if file is None:
        from octavo.models.tokenizer_hf import read_parts

        return Tokenizer(read_parts(path))
    from octavo.models.tokenizer_gguf import read_parts as read_gguf_parts

    return Tokenizer(read_gguf_parts(file))


class Tokenizer:
    """Encodes, decodes, and knows the control tokens."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._bytes: dict[int, bytes] = {}
        self._control_ids, self._control, self._anywhere = _control_patterns(parts)
        self.num_tokens = parts.num_tokens
        self.eos_ids = parts.eos_ids
        self.bos_id = parts.bos_id
        self.add_bos = parts.add_bos
        self.byte_level = parts.byte_level
        self.chat_templates = dict(parts.chat_templates)
        self.chat_template = self.chat_templates.get("default")
        self.special_strings = dict(parts.special_strings)

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool = False) -> list[int]:
        """Ids of a text. Only with `parse_special` does the text of a control token become that token.

        `add_bos` puts a BOS in front unless the text begins with one already.
        """
        ids = self._encode_special(text) if parse_special else self._encode(self._parts.plain, text)
        if add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def _encode_special(self, text: str) -> list[int]:
        if self._parts.inner is not None:
            return self._encode_runs([(text, True)])
        return self._encode(self._parts.backend, text)

    @staticmethod
    def _encode(encoder: Backend, text: str) -> list[int]:
        text = _well_formed(text)
        if len(text) < LONG_TEXT:
            ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        else:  # this one lets other threads run meanwhile
            ids = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def encode_within(self, text: str) -> list[int]:
        """Ids of a text as it stands behind other text: no space is put in front."""
        return self._encode(self._parts.inner or self._parts.plain, text)

    def encode_chat(self, segments: Sequence[tuple[str, bool]]) -> list[int]:
        """Ids of a rendered chat: (text, whether the template wrote it) in order.

        Control tokens are found in the template's text alone; all that lies between two of them is encoded as one
        run of ordinary text. So for every chat in which no user wrote the text of a control token, the ids are those
        of the joined text in other engines; and where one did, that text is spelt out in ordinary tokens.
        """
        if not any(self.holds_special(text) for text, from_template in segments if not from_template):
            return self._encode_special("".join(text for text, _ in segments))
        return self._encode_runs(segments)

    def _encode_runs(self, segments: Sequence[tuple[str, bool]]) -> list[int]:
        ids: list[int] = []
        run: list[str] = []
        for text, from_template in segments:
            if not from_template or self._control is None:
                run.append(text)
                continue
            at = 0
            for found in self._control.finditer(text):
                run.append(text[at : found.start()])
                ids += self._encode_run(run, bool(ids))
                ids.append(self._control_ids[found.group().strip()])
                run, at = [], found.end()
            run.append(text[at:])
        return ids + self._encode_run(run, bool(ids))

    def _encode_run(self, run: list[str], behind_control: bool) -> list[int]:
        text = "".join(run)
        if not text:
            return []
        inner = self._parts.inner if behind_control else None
        return self._encode(inner or self._parts.plain, text)

    def holds_special(self, text: str) -> bool:
        """Whether a text contains the text of a control token."""
        return self._anywhere is not None and self._anywhere.search(text) is not None

    @property
    def control_texts(self) -> tuple[str, ...]:
        """The texts that become control tokens in a template."""
        return tuple(self._control_ids)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD, ids that no token has are skipped.

        The space that encoding put before a text is dropped from its start. What follows other tokens keeps its
        space: an answer is decoded token by token (`token_bytes`), so prompt and answer join to the whole text.
        """
        kept = (i for i in ids if not (skip_special and self.is_special(i)))
        content = b"".join(map(self.token_bytes, kept))
        if self._parts.drops_space:
            content = content.removeprefix(b" ")
        return content.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; empty for ids that no token has."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._token_bytes(token_id)
        return known

    def _token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.num_tokens or token in self._parts.unused_ids:
            return b""
        text = self._parts.backend.id_to_token(token)
        if text is None:
            return b""
        if token in self._parts.special_ids:
            return str(text).encode()
        return _byte_level(text) if self._parts.byte_level else _sentence_piece(text)

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a control token, left out of answers."""
        return token_id in self._parts.special_ids

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it; empty for ids that no token has."""
        return str(self._parts.backend.id_to_token(token_id) or "")

    def token_id(self, text: str) -> int | None:
        """The id of the token with this exact text in the vocabulary."""
        found = self._parts.backend.token_to_id(text)
        return None if found is None else int(found)

    def to_json(self) -> str:
        """The tokeniser in the format of tokenizer.json."""
        return str(self._parts.backend.to_str())


def _control_patterns(
    parts: TokenizerParts,
) -> tuple[dict[str, int], re.Pattern[str] | None, re.Pattern[str] | None]:
    """The control tokens by their text, a pattern that finds them as the library does (leftmost, then longest, with
    the spaces that some of them eat), and one that finds their text alone."""
    added = parts.backend.get_added_tokens_decoder()
    control = {token.content: (i, token) for i, token in added.items() if token.special and token.content.strip()}
    if not control:
        return {}, None, None
    ids = {text.strip(): i for text, (i, _) in control.items()}
    anywhere = text_pattern(ids)
    if not any(token.lstrip or token.rstrip or token.content not in ids for _, token in control.values()):
        return ids, anywhere, anywhere
    branches = [
        (r"\s*" if token.lstrip else "") + re.escape(text) + (r"\s*" if token.rstrip else "")
        for text, (_, token) in sorted(control.items(), key=lambda item: -len(item[0]))
    ]
    return ids, re.compile("|".join(branches)), anywhere


def text_pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of the texts, the longest first; its time does not grow with their number."""
    root: dict[str, Any] = {}
    for text in filter(None, texts):
        node = root
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    try:
        return re.compile(_branches(root)) if root else None
    except RecursionError as error:
        raise ModelError("the vocabulary is damaged: hundreds of control tokens begin one another") from error


def _branches(node: dict[str, Any]) -> str:
    """A tree of texts as an expression; texts that only differ at their end share all before it."""
    ends = "" in node
    branches = []
    for first, below in node.items():
        if not first:
            continue
        run = re.escape(first)
        while len(below) == 1 and "" not in below:
            ((character, below),) = below.items()
            run += re.escape(character)
        branches.append(run + (_branches(below) if set(below) != {""} else ""))
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if ends else "")


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


_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _sentence_piece(text: str) -> bytes:
    if (byte := _BYTE_PIECE.fullmatch(text)) is not None:
        return bytes([int(byte[1], 16)])
    return text.replace("\u2581", " ").encode()


def share_plain(backend: Backend, special_ids: frozenset[int]) -> Backend:
    """The second encoder: the first one's model and rules, without control tokens."""
    ordinary = {i: token for i, token in backend.get_added_tokens_decoder().items() if i not in special_ids}
    if all(backend.model.token_to_id(token.content) == i for i, token in ordinary.items()):
        plain = Backend(backend.model)  # shares the vocabulary
        if backend.normalizer is not None:
            plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            plain.pre_tokenizer = backend.pre_tokenizer
        if backend.decoder is not None:
            plain.decoder = backend.decoder
        plain.add_tokens([ordinary[i] for i in sorted(ordinary)])
        return plain
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["id"] in special_ids
    plain = Backend.from_str(json.dumps(content))
    plain.encode_special_tokens = True
    return plain
