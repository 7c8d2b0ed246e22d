"""Messages about tools as a template can say them: what it lacks is written into ordinary turns.

Owns nothing. The rules (docs/tools.md has them for users), each for a template without the ability:
tools are told in the system turn (in the first user turn where there are no system turns); an assistant's calls are
written into its content in the form that answers are read in; answers of tools become user turns, those in a row one;
calls that a turn can have but one of are spread over several turns, each followed by its answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from octavo.server.tools.dialect import Dialect
from octavo.server.tools.forms import Form

Turn = dict[str, Any]

_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")


def concerns_tools(messages: Sequence[Turn]) -> bool:
    """Some message calls or answers."""
    return any(message.get("tool_calls") or message["role"] == "tool" for message in messages)


def as_said(
    messages: Sequence[Turn], tools: Sequence[dict[str, Any]], dialect: Dialect, form: Form
) -> tuple[list[Turn], list[dict[str, Any]] | None]:
    """The turns for the template, and the tools where it tells of them itself."""
    turns = [dict(message) for message in messages]
    if form.short_ids:
        turns = [_with_short_ids(turn) for turn in turns]
    if dialect.calls and not dialect.several:
        turns = _one_call_a_turn(turns)
    elif not dialect.calls:
        turns = [_with_calls_as_text(turn, form) for turn in turns]
    if not dialect.answers:
        turns = _with_answers_as_user(turns)
    if not tools or dialect.tools:
        return turns, list(tools) or None
    if dialect.system_tools:
        return _with_system_tools(turns, tools), None
    return _with_prompt(turns, default_prompt(tools, form), dialect.system), None


def default_prompt(tools: Sequence[dict[str, Any]], form: Form) -> str:
    """What a model is told of tools where its template says nothing of them."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.write([{"name": "NAME", "arguments": '{"PARAMETER": VALUE}'}])
    return (
        "You can call functions. They are, one a line, with the JSON schema of their parameters:\n"
        f"{functions}\n"
        "To call one, answer with\n"
        f"{example}\n"
        "once for each call. The results come in the next message. Answer in words where no function helps."
    )


def _with_short_ids(turn: Turn) -> Turn:
    """Ids of calls that came from elsewhere, as nine letters and digits: equal ones stay equal."""
    if turn.get("tool_calls"):
        turn["tool_calls"] = [{**call, "id": _short_id(call.get("id") or "")} for call in turn["tool_calls"]]
    if turn.get("tool_call_id") is not None:
        turn["tool_call_id"] = _short_id(turn["tool_call_id"])
    return turn


def _short_id(ident: str) -> str:
    return ident if _SHORT_ID.fullmatch(ident) else hashlib.sha256(ident.encode()).hexdigest()[:9]


def _one_call_a_turn(turns: list[Turn]) -> list[Turn]:
    """Several calls of a turn as several turns, each before the answer to its call."""
    said: list[Turn] = []
    at = 0
    while at < len(turns):
        turn = turns[at]
        at += 1
        calls = turn.get("tool_calls") or []
        if len(calls) < 2:
            said.append(turn)
            continue
        answers = []
        while at < len(turns) and turns[at]["role"] == "tool":
            answers.append(turns[at])
            at += 1
        for number, call in enumerate(calls):
            said.append({**turn, "content": "" if number else turn["content"], "tool_calls": [call]})
            mine = _answers_to(call, number, calls, answers)
            said += mine
            answers = [answer for answer in answers if answer not in mine]
        said += answers
    return said


def _answers_to(call: Turn, number: int, calls: Sequence[Turn], answers: Sequence[Turn]) -> list[Turn]:
    """By id; where the answers have none, by their place."""
    if call.get("id") is not None and any("tool_call_id" in answer for answer in answers):
        return [answer for answer in answers if answer.get("tool_call_id") == call["id"]]
    return list(answers[:1] if number < len(calls) - 1 else answers)


def _with_calls_as_text(turn: Turn, form: Form) -> Turn:
    calls = turn.pop("tool_calls", None)
    if calls:
        written = form.write([call["function"] for call in calls])
        turn["content"] = f"{turn['content']}\n{written}" if turn["content"] else written
    return turn


def _with_answers_as_user(turns: Sequence[Turn]) -> list[Turn]:
    """Answers in a row, and what the user says behind them, are one user turn."""
    said: list[Turn] = []
    within = False
    for turn in turns:
        answers = turn["role"] == "tool"
        if answers:
            turn = {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
        if within and turn["role"] == "user":
            said[-1]["content"] += f"\n{turn['content']}"
        else:
            said.append(turn)
        within = answers
    return said


def _with_system_tools(turns: list[Turn], tools: Sequence[dict[str, Any]]) -> list[Turn]:
    functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if turns[0]["role"] != "system":
        turns = [{"role": "system", "content": ""}, *turns]
    return [{**turns[0], "tools": functions}, *turns[1:]]


def _with_prompt(turns: list[Turn], prompt: str, system: bool) -> list[Turn]:
    if turns[0]["role"] == "system" or not system:
        at = 0 if turns[0]["role"] == "system" else next((i for i, t in enumerate(turns) if t["role"] == "user"), 0)
        content = turns[at]["content"]
        together = f"{content}\n\n{prompt}" if turns[at]["role"] == "system" else f"{prompt}\n\n{content}"
        return [*turns[:at], {**turns[at], "content": together if content else prompt}, *turns[at + 1 :]]
    return [{"role": "system", "content": prompt}, *turns]
