"""A structure as llguidance's grammar, with its limits: what every request may cost at most.

Owns the form of JSON that models are held to: that of Python's `json.dumps`, one space behind a colon and a comma and
none elsewhere, so white space never runs on. Loaded in the mask process alone. There is no off switch here.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from octavo.types import Structure

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
}
"""About 20 ms of compilation, 15 ms of lexing and 3 ms of parsing a mask, and 100 MB of states, on a slow core."""
_JSON = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
}


def grammar_of(structure: Structure) -> str:
    """llguidance's own form; ValueError says what is wrong."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    kind, text = structure.kind, structure.text
    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(text, overrides=_JSON)  # type: ignore[arg-type]
    if kind == "json_object":
        return LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=_JSON)  # type: ignore[arg-type]
    if kind == "regex":
        return LLMatcher.grammar_from_regex(without_anchors(text))
    if kind == "choice":
        return LLMatcher.grammar_from_regex("|".join(f"(?:{re.escape(choice)})" for choice in json.loads(text)))
    if kind == "gbnf":
        return LLMatcher.grammar_from_lark(any_to_lark(text))
    assert kind == "lark", kind
    return LLMatcher.grammar_from_lark(text)


def without_anchors(pattern: str) -> str:
    """The whole output matches in any case."""
    if pattern.startswith("^"):
        pattern = pattern[1:]
    if pattern.endswith("$"):
        escapes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
        pattern = pattern if escapes % 2 else pattern[:-1]
    return pattern


def compile_structure(tokenizer: LLTokenizer, structure: Structure) -> LLMatcher:
    """A matcher that has taken nothing; ValueError, of one clause, where there is none."""
    from llguidance import LLMatcher, LLParserLimits

    limits: Any = _LIMITS
    matcher = LLMatcher(
        tokenizer, grammar_of(structure), log_level=0, limits=LLParserLimits(verbose_errors=False, **limits)
    )
    if matcher.is_error():
        raise ValueError(explain(matcher.get_error()))
    return matcher


DEAD_ENDS = ("NoExtension", "NoExtensionBias")
"""Why a matcher stops where nothing may follow."""
_NOISE = re.compile(r"\s*<non-verbose/>|^\s*(Error:|Invalid grammar:)\s*")


def explain(error: str) -> str:
    """llguidance's words as one clause of bounded length."""
    if error.split() and error.split()[0] in DEAD_ENDS:
        return "no output could satisfy it"
    text = " ".join(_NOISE.sub(" ", error).split()).rstrip(".")
    return text if len(text) <= 240 else text[:237] + "..."
