"""The grammars of forced calls take what they should and nothing else, for every form; marks as text and as tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from octavo.server.tools.definitions import FunctionDefinition, ToolPlan
from octavo.server.tools.forms import FORMS, MISTRAL_APART, Form
from octavo.server.tools.grammar import structure_of
from tests.support.tiny import BASE_VOCAB, tokenizer_json

MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>")
F = FunctionDefinition(
    name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, strict=True
)
NOW = FunctionDefinition(name="now", parameters={"type": "object", "properties": {}})
LOOSE = FunctionDefinition(name="f", parameters=F.parameters, strict=False)
REQUIRED = ToolPlan((F, NOW), required=True)
NAMED = ToolPlan((F,), required=True, parallel=False, named=True)
AUTO = ToolPlan((F, NOW))
ONE = [{"name": "f", "arguments": {"a": 1}}]
TWO = [*ONE, {"name": "now", "arguments": {}}]
BAD = [{"name": "f", "arguments": {"b": 1}}]


class Checker:
    """Texts against grammars, over one tokeniser."""

    def __init__(self, marks_are_tokens: bool) -> None:
        parts = tokenizer_json()
        if marks_are_tokens:
            flags = {key: value for key, value in parts["added_tokens"][0].items() if key not in ("id", "content")}
            parts["added_tokens"] += [
                {"id": BASE_VOCAB + place, "content": mark, **flags} for place, mark in enumerate(MARKS)
            ]
        self._marks = {mark: BASE_VOCAB + place for place, mark in enumerate(MARKS)} if marks_are_tokens else {}
        text = json.dumps(parts)
        self._encoder = tokenizers.Tokenizer.from_str(text)
        self._tokens = LLTokenizer(text, n_vocab=BASE_VOCAB + len(self._marks), eos_token=2)

    def takes(self, plan: ToolPlan, form: Form, text: str, thoughts: bool = False, opened: bool = False) -> bool:
        structure = structure_of(plan, form, thoughts, opened, self._marks.get)
        assert structure is not None
        matcher = LLMatcher(self._tokens, LLMatcher.grammar_from_lark(structure.text), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = self._encoder.encode(text, add_special_tokens=False).ids
        taken: Any = matcher.try_consume_tokens(ids)
        return bool(taken == len(ids) and matcher.is_accepting())


@pytest.fixture(scope="module", params=[False, True], ids=["text", "tokens"])
def checker(request: pytest.FixtureRequest) -> Checker:
    return Checker(request.param)


@pytest.fixture(params=[*FORMS.values(), MISTRAL_APART], ids=lambda form: form.name + ("-apart" if form.apart else ""))
def form(request: pytest.FixtureRequest) -> Form:
    chosen: Form = request.param
    return chosen


def test_required_answers_are_calls_alone(checker: Checker, form: Form) -> None:
    assert checker.takes(REQUIRED, form, form.write(ONE)) and checker.takes(REQUIRED, form, form.write(TWO))
    assert checker.takes(REQUIRED, form, form.write(ONE * 16)) and not checker.takes(
        REQUIRED, form, form.write(ONE * 17)
    )
    for wrong in ("", "hi", form.write(BAD), f"hi {form.write(ONE)}", f"{form.write(ONE)} hi"):
        assert not checker.takes(REQUIRED, form, wrong), wrong


def test_a_named_answer_is_one_call(checker: Checker, form: Form) -> None:
    assert checker.takes(NAMED, form, form.write(ONE))
    assert not checker.takes(NAMED, form, form.write(TWO)) and not checker.takes(NAMED, form, form.write(TWO[1:]))


def test_thoughts_come_before_forced_calls(checker: Checker, form: Form) -> None:
    call = form.write(ONE)
    assert checker.takes(REQUIRED, form, f"<think>hm </x></think>\n\n{call}", thoughts=True)
    assert checker.takes(REQUIRED, form, call, thoughts=True)
    assert checker.takes(REQUIRED, form, f"hm\n</think>\n\n{call}", thoughts=True, opened=True)
    assert not checker.takes(REQUIRED, form, call, thoughts=True, opened=True)


def test_strict_answers_are_words_and_calls_that_follow_their_schemas(checker: Checker, form: Form) -> None:
    gap = "" if form.begin and not form.bare else "\n"
    for text in ("", "hi\n\nthere <", form.write(TWO), f"hi\n<x> {gap}{form.write(ONE)}"):
        assert checker.takes(AUTO, form, text), text
    assert not checker.takes(AUTO, form, f"hi\n<x> {gap}{form.write(BAD)}")
    assert checker.takes(AUTO, form, "<think>hm</think>\n\nhi", thoughts=True)
    assert checker.takes(AUTO, form, f"hm</think>\n\nhi {gap}{form.write(ONE)}", thoughts=True, opened=True)


def test_strict_false_takes_any_object_and_no_tool_at_all_holds_nothing(checker: Checker, form: Form) -> None:
    loose = ToolPlan((LOOSE,), required=True)
    assert checker.takes(loose, form, form.write(BAD)) and checker.takes(loose, form, form.write(ONE))
    assert structure_of(ToolPlan((LOOSE, NOW)), form, False, False, lambda text: None) is None
