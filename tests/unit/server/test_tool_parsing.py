"""Tool calls out of text: every form, every split, every cut; what is no call stays text. Case E6."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.tools.forms import FORMS, HERMES, JSON, LLAMA3, MISTRAL, Form, taught_form
from octavo.server.tools.json_machine import JsonMachine
from octavo.server.tools.message import MessageParts
from octavo.server.tools.parser import ToolParser

NAMES = ("f", "get_weather", "now")
HARD = '{"q":"a \\"b\\" {c} 世\\n","n":[1,{"k":null}]}'

BOTH = [("f", HARD), ("now", "{}")]


def parsed(form: Form, pieces: Iterable[str], several: bool = True) -> tuple[Any, list[tuple[str, str]], bool]:
    """Content, calls, and whether the calls are complete; checks that ids and names come once and indices in order."""
    parser = ToolParser(form, NAMES, several)
    parts = MessageParts()
    seen = 0
    for piece in [*pieces, None]:
        if piece is None:
            parser.finish()
        else:
            parser.push(piece)
        delta = parser.take()
        assert len({call.index for call in delta.calls}) == len(delta.calls)
        for call in delta.calls:
            if call.id is not None:
                assert call.name is not None and call.index == seen
                seen += 1
            assert call.index == seen - 1 or len(delta.calls) > 1
        parts.add(delta)
    fields = parts.fields()
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in fields.get("tool_calls", ())]
    return fields["content"], calls, parser.complete


CALLS: list[tuple[Form, str, str | None, list[tuple[str, str]]]] = [
    (HERMES, f'<tool_call>{{"name":"f","arguments":{HARD}}}</tool_call>', None, [("f", HARD)]),
    (
        HERMES,
        'Let me see.\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n'
        '{"arguments": {"x": -1.5e3}, "name": "other"}\n</tool_call>\n',
        "Let me see.",
        [("f", "{}"), ("other", '{"x": -1.5e3}')],
    ),
    (HERMES, '<tool_call>{"name":"now"}</tool_call> There.', "There.", [("now", "{}")]),
    (HERMES, '<tool_call>[{"name":"f","arguments":null},{"name":"f"}]</tool_call>', None, [("f", "{}")] * 2),
    (HERMES, '<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call>', None, [("f", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name":"f","arguments":{"a": "x\ny"}}</tool_call>', None, [("f", '{"a": "x\\ny"}')]),
    (HERMES, '<tool_call>{"id":12,"name":"f","arguments":{}}', None, [("f", "{}")]),
    (
        MISTRAL,
        f'[TOOL_CALLS] [{{"name":"f","arguments":{HARD}}}, {{"name":"now"}}]',
        None,
        [("f", HARD), ("now", "{}")],
    ),
    (MISTRAL, f"Now: [TOOL_CALLS]f[ARGS]{HARD}[TOOL_CALLS]now[ARGS]{{}}", "Now:", BOTH),
    (MISTRAL, '[TOOL_CALLS]f[CALL_ID]ab12[ARGS] {"a": 1}', None, [("f", '{"a": 1}')]),
    (MISTRAL, '[TOOL_CALLS]f{"a": 1}', None, [("f", '{"a": 1}')]),
    (
        LLAMA3,
        f'{{"name":"f","parameters":{HARD}}}; {{"name": "now", "parameters": {{}}}}',
        None,
        [("f", HARD), ("now", "{}")],
    ),
    (LLAMA3, '<|python_tag|>{"type":"function","name":"other","parameters":{}}', None, [("other", "{}")]),
    (
        JSON,
        'Sure:\n[{"name":"f","arguments":{}},\n {"name":"now","arguments":{"a":1}}]',
        "Sure:",
        [("f", "{}"), ("now", '{"a":1}')],
    ),
    (JSON, '{"a": 1}\n{"name":"f","parameters":{}}', '{"a": 1}', [("f", "{}")]),
]

TEXTS: list[tuple[Form, str]] = [
    (HERMES, "a < b, <tool, <tool_cal"),
    (HERMES, " \n  two  spaces \n "),
    (HERMES, "<tool_call>nothing</tool_call> more"),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    (HERMES, '{"name": "f", "arguments": {}}'),
    (MISTRAL, "[TOOL_CALLS]f [ARX]{}"),
    (MISTRAL, "[TOOL_CALLS]" + "f" * 300),
    (MISTRAL, "[1, 2]"),
    (LLAMA3, '<|python_tag|>print("hello")'),
    (JSON, '{"name": "Bob", "age": 3}'),
    (JSON, '{"name": "f", "age": 3}'),
    (JSON, 'for example {"name": "f", "arguments": {}}'),
    (JSON, "[1, 2]"),
    (JSON, "{{x}}"),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CALLS)
def test_calls_are_found_at_every_split(
    form: Form, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    expected = (content, calls, True)
    assert parsed(form, text) == parsed(form, [text]) == expected
    for at in range(len(text)):
        assert parsed(form, [text[:at], text[at:]]) == expected, f"split at {at}"
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(("form", "text"), TEXTS)
def test_what_is_no_call_stays_as_it_was_written(form: Form, text: str) -> None:
    for at in range(len(text)):
        assert parsed(form, [text[:at], text[at:]]) == (text, [], False)


@pytest.mark.parametrize(("form", "text", "content", "calls"), CALLS)
def test_a_cut_answer_is_complete_only_where_no_call_is_open(
    form: Form, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    for at in range(len(text)):
        cut = text[:at]
        said, found, complete = parsed(form, [cut])
        assert (said, found, complete) == parsed(form, cut), at
        assert [name for name, _ in found] == [name for name, _ in calls][: len(found)]
        if complete:
            assert found == calls[: len(found)] and found


def test_a_call_that_goes_wrong_keeps_all_that_was_written() -> None:
    text = '<tool_call>{"name":"f","arguments":{"a": oops}} </tool_call>'
    assert parsed(HERMES, text) == (None, [("f", '{"a": oops}} ')], False)


def test_an_only_call_ends_the_answer() -> None:
    call = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    assert parsed(HERMES, [call * 3, "x"], several=False) == (None, [("f", "{}")], True)


_TEXT = st.text(alphabet=string.ascii_letters + ' \n<>[]{}",:;\\|/_世😀', max_size=30)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_ARGUMENTS = st.dictionaries(st.text(max_size=6), _VALUES, max_size=4)


@settings(max_examples=150, deadline=None, database=None)
@given(st.data(), st.sampled_from(sorted(FORMS)), st.lists(st.tuples(st.sampled_from(NAMES), _ARGUMENTS), max_size=3))
def test_what_a_form_writes_is_read_back(data: st.DataObject, name: str, calls: list[tuple[str, Any]]) -> None:
    form = FORMS[name]
    text = form.write([{"name": called, "arguments": arguments} for called, arguments in calls]) if calls else ""
    content, found, complete = parsed(form, data.draw(splits(text)))
    assert content is None and complete == bool(calls)
    assert [(called, json.loads(arguments)) for called, arguments in found] == calls


@settings(max_examples=300, deadline=None, database=None)
@given(st.data(), st.sampled_from(sorted(FORMS)), st.lists(_TEXT | st.sampled_from([text for _, text, *_ in CALLS])))
def test_no_split_of_any_text_changes_what_it_joins_to(data: st.DataObject, name: str, texts: list[str]) -> None:
    text = "".join(texts)
    assert parsed(FORMS[name], data.draw(splits(text))) == parsed(FORMS[name], [text])


def splits(text: str) -> st.SearchStrategy[list[str]]:
    """The text in pieces."""
    cuts = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return cuts.map(lambda at: [text[i:j] for i, j in zip([0, *at], [*at, len(text)], strict=True)])


@settings(max_examples=300, deadline=None, database=None)
@given(_VALUES)
def test_the_machine_knows_where_a_value_ends(value: Any) -> None:
    text = json.dumps([value], ensure_ascii=False)
    machine = JsonMachine()
    for at, character in enumerate(text):
        assert not machine.done
        assert machine.feed(character), text[: at + 1]
    assert machine.done and machine.depth == 0
    assert not machine.feed("x")


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.sampled_from(list('{}[]",:\\u0123.eE+-truefalsn \n')), max_size=14).map("".join))
def test_the_machine_takes_what_json_takes(text: str) -> None:
    machine = JsonMachine()
    text = f"[{text}]"
    taken = all(machine.feed(character) for character in text) and machine.done
    try:
        json.loads(text, strict=False)
        real = True
    except ValueError:
        real = False
    assert taken == real, text


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("<tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3"),
        ('{"name": n, "parameters": d}', "llama3"),
        ("tools", "json"),
        ("<tool_call><function=f>", None),
        ("<tool_call>f<arg_key>", None),
    ],
)
def test_the_form_is_read_from_the_template(source: str, name: str | None) -> None:
    form = taught_form(source)
    assert (form.name if form else None) == name
