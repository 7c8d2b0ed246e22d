"""Tokens to text: byte exact for any bytes, however they are divided into tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.detokenizer import Detokenizer


class Vocabulary:
    """A token is its own bytes; the ids in `special` are control tokens."""

    def __init__(self, tokens: dict[int, bytes], special: frozenset[int] = frozenset()) -> None:
        self._tokens = tokens
        self._special = special

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens.get(token_id, b"")

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special


GRIN = {10813: b"\xf0\x9f", 242: b"\x98", 218: b"\x80", 260: b" the"}


def text_of(vocabulary: Vocabulary, ids: list[int], skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(vocabulary, skip_special)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


def test_a_character_of_three_tokens_appears_once_it_is_whole() -> None:
    assert text_of(Vocabulary(GRIN), [10813, 242, 218]) == ["", "", "\U0001f600", ""]


def test_bytes_that_end_inside_a_character_become_one_replacement_and_spare_their_neighbours() -> None:
    pieces = text_of(Vocabulary(GRIN), [10813, 242, 260, 218])
    assert "".join(pieces) == "\ufffd the\ufffd"
    assert pieces[:2] == ["", ""], "a tail that can still be completed is kept"


def test_a_tail_that_is_never_completed_is_one_replacement_at_the_end() -> None:
    assert text_of(Vocabulary(GRIN), [260, 10813, 242]) == [" the", "", "", "\ufffd"]


def test_special_tokens_are_skipped_or_shown_and_do_not_cut_a_pending_character() -> None:
    vocabulary = Vocabulary({**GRIN, 2: b"<|im_end|>"}, frozenset({2}))
    ids = [10813, 2, 242, 218]
    assert "".join(text_of(vocabulary, ids)) == "\U0001f600"
    assert "".join(text_of(vocabulary, ids, skip_special=False)) == "\ufffd<|im_end|>\ufffd\ufffd"


def test_ids_beyond_the_vocabulary_are_empty_text() -> None:
    assert "".join(text_of(Vocabulary(GRIN), [260, 49200, -1, 260])) == " the the"


FRAGMENTS = [b"\xf0\x9f", b"\x98", b"\x80", b"\xe4\xb8", b"\x96", b"\xc4", b"\x8f", b"a", b" the", b"\xff", b"\xed\xa0"]


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=5)), max_size=40))
def test_joined_pieces_equal_the_decoded_whole(tokens: list[bytes]) -> None:
    vocabulary = Vocabulary(dict(enumerate(tokens)))
    pieces = text_of(vocabulary, list(range(len(tokens))))
    assert "".join(pieces) == b"".join(tokens).decode("utf-8", errors="replace")


@given(st.text(max_size=60), st.data())
def test_no_replacement_appears_where_the_bytes_are_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    tokens = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert "".join(text_of(Vocabulary(dict(enumerate(tokens))), list(range(len(tokens))))) == text


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=12), min_size=2, max_size=4), st.randoms())
def test_streams_that_take_turns_do_not_mix(streams: list[list[bytes]], random: object) -> None:
    waiting = [list(stream) for stream in streams]
    decoders = [Detokenizer(Vocabulary(dict(enumerate(stream)))) for stream in streams]
    at = [0] * len(streams)
    got = [""] * len(streams)
    while any(waiting):
        i = random.choice([i for i, rest in enumerate(waiting) if rest])  # type: ignore[attr-defined]
        waiting[i].pop(0)
        got[i] += decoders[i].push(at[i])
        at[i] += 1
    for i, stream in enumerate(streams):
        assert got[i] + decoders[i].finish() == b"".join(stream).decode("utf-8", errors="replace")
