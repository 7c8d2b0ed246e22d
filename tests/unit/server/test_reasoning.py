"""Thoughts out of text: at the start alone, opened by the model or by the template, at every split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.detokenizer import Detokenizer
from octavo.models.tokenizer import Tokenizer, load_tokenizer
from octavo.server.choice import Choice
from octavo.server.params import TextOptions
from octavo.server.tools.forms import HERMES
from octavo.server.tools.parser import ToolParser
from octavo.server.tools.parts import AnswerParts
from octavo.server.tools.reasoning import Reasoning
from octavo.server.tools.talk import MarkedTokens, opens_thoughts
from octavo.types import FinishReason, TokenDelta
from tests.support.tiny import write_hf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_hf(tmp_path_factory.mktemp("model")).path)


def parted(pieces: list[str], opened: bool) -> tuple[str, str, bool]:
    reasoning = Reasoning(opened)
    said = [reasoning.push(piece) for piece in pieces] + [reasoning.finish()]
    return "".join(thought for thought, _ in said), "".join(rest for _, rest in said), reasoning.found


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nhm <b> </thi x\n</think>\n\n42", False, ("hm <b> </thi x", "42", True)),
        ("\n<think>a</think>b <think>c</think>", False, ("a", "b <think>c</think>", True)),
        ("<think>a </thi", False, ("a </thi", "", True)),
        ("<think></think>x", False, ("", "x", True)),
        (" x <think>a</think>", False, ("", " x <think>a</think>", False)),
        ("<thi", False, ("", "<thi", False)),
        ("  ", False, ("", "  ", False)),
        ("\nhm\n</think>\n\n42", True, ("hm", "42", True)),
        ("hm", True, ("hm", "", True)),
        ("</think>42", True, ("", "42", True)),
    ],
)
def test_thoughts_are_parted_at_every_split(text: str, opened: bool, expected: tuple[str, str, bool]) -> None:
    for at in range(len(text) + 1):
        assert parted([text[:at], text[at:]], opened) == expected
    assert parted(list(text), opened) == expected


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", " ", "\n", "a", "é"])), st.booleans())
def test_no_split_changes_thoughts(texts: list[str], opened: bool) -> None:
    whole = "".join(texts)
    assert parted(texts, opened) == parted(list(whole), opened) == parted([whole], opened)


def test_the_template_opens_thoughts_where_the_prompt_ends_so() -> None:
    assert opens_thoughts("assistant\n<think>\n")
    assert not opens_thoughts("assistant\n<think>\n\n</think>\n\n")
    assert not opens_thoughts("assistant\n")


def test_marks_that_are_control_tokens_are_read_and_other_control_tokens_are_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tokenizer = load_tokenizer(write_hf(tmp_path_factory.mktemp("model")).path)
    marked = MarkedTokens(tokenizer, ("<|im_start|>", "<none>"))
    ids = [1, *tokenizer.encode("a"), 0, 2]
    decoder = Detokenizer(marked)
    assert "".join(map(decoder.push, ids)) == "<|im_start|>a"


def test_reasoning_tokens_end_with_the_token_that_ends_the_thoughts(tokenizer: Tokenizer) -> None:
    options = TextOptions(stops=(), include_stop=False, skip_special=True, min_tokens=0, logprobs=None)
    thoughts, call = "<think>hm</think>", '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    ids = tokenizer.encode(thoughts) + tokenizer.encode(call)
    parts = AnswerParts(Reasoning(False), ToolParser(HERMES, ["f"]))
    choice = Choice(0, tokenizer, options, parts)
    choice.feed(TokenDelta(0, ids))
    assert choice.feed(TokenDelta(0, [2], finish=FinishReason.STOP)).finish_reason == "tool_calls"
    assert choice.reasoning_tokens == len(tokenizer.encode(thoughts))
    cut = Choice(0, tokenizer, options, AnswerParts(Reasoning(False), ToolParser(HERMES, ["f"])))
    piece = cut.feed(TokenDelta(0, ids[:8], finish=FinishReason.LENGTH))
    assert piece.delta is not None and piece.delta.reasoning == "hm" and cut.reasoning_tokens == 8
