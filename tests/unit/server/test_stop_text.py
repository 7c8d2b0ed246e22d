"""Stop text: cut at the character, whatever the division into tokens; nothing of it is ever sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.server.stops import StopMatcher


def run(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, bool, list[str]]:
    """(joined text, whether it stopped, what was sent after each piece)."""
    matcher = StopMatcher(stops, include)
    sent: list[str] = []
    for piece in pieces:
        text, found = matcher.push(piece)
        sent.append(text)
        if found:
            return "".join(sent), True, sent
    sent.append(matcher.flush())
    return "".join(sent), False, sent


def cut(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """What must come out, one character after the other."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end if include else end - max(map(len, ending))], True
    return text, False


def test_the_beginning_of_a_stop_string_is_held_back_until_it_cannot_be_one() -> None:
    assert run(["a", "ST", "O", "X"], ["STOP"]) == ("aSTOX", False, ["a", "", "", "STOX", ""])
    assert run(["a", "ST", "OP", "X"], ["STOP"]) == ("a", True, ["a", "", ""])


def test_a_stop_string_may_begin_and_end_inside_a_piece() -> None:
    assert run(["hello wor", "ld!"], ["o w"])[:2] == ("hell", True)


def test_the_first_complete_stop_string_wins() -> None:
    assert run(["abcd"], ["bcd", "c"])[:2] == ("ab", True)
    assert run(["abcd"], ["c", "bc"])[:2] == ("a", True)


def test_the_stop_string_is_shown_where_asked_for() -> None:
    assert run(["ab", "cd"], ["bc"], include=True)[:2] == ("abc", True)


def test_without_stop_strings_nothing_is_held() -> None:
    assert run(["a", "b"], [])[2] == ["a", "b", ""]


SMALL = st.text(alphabet="ab", max_size=6)


@given(
    st.lists(SMALL, max_size=8),
    st.lists(SMALL.filter(bool), max_size=3),
    st.booleans(),
)
def test_the_cut_does_not_depend_on_the_pieces(pieces: list[str], stops: list[str], include: bool) -> None:
    joined, found, sent = run(pieces, stops, include)
    assert (joined, found) == cut("".join(pieces), stops, include)
    so_far = ""
    for text in sent:
        so_far += text
        assert joined.startswith(so_far)


@given(st.lists(SMALL, max_size=8), st.lists(SMALL.filter(bool), min_size=1, max_size=3))
def test_no_more_is_held_than_may_still_be_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    pushed = sent = ""
    for piece in pieces:
        pushed += piece
        text, found = matcher.push(piece)
        sent += text
        if found:
            return
        held = pushed[len(sent) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
