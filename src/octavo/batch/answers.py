"""What a line of the output says: a call's answer, or what is wrong with the line.

A batch line is answered in OpenAI's batch form. Lines of our own form get `line`, `id`, `text`, `finish_reason` and
`usage` (or `choices`, where several were asked for), and nothing that depends on when or beside whom they ran: two runs
over the same input are equal byte for byte. Every line of the output names its line of the input: that is what a run
which goes on reads. Owns no state and has no off switch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from octavo.batch.lines import CHAT, Call, LineError

_BATCH_ID = "batch_req_"
_NUMBER = re.compile(rf"{_BATCH_ID}(\d{{1,18}})")


@dataclass(frozen=True)
class Result:
    """One line of the output."""

    line: int
    text: bytes
    """JSON and its newline."""
    error: str | None = None
    """One sentence, where it is no answer."""
    completion_tokens: int = 0


class _Response(msgspec.Struct):
    status_code: int


class _Head(msgspec.Struct):
    """What of an output's line says whose answer it is."""

    line: Annotated[int, msgspec.Meta(ge=1)] | None = None
    id: Any = None
    error: dict[str, Any] | None = None
    response: _Response | None = None


_head = msgspec.json.Decoder(_Head)


def line_of(raw: bytes) -> tuple[int, bool] | None:
    """The input's line that a line of the output answers, and whether with an error; None: it is no line of ours."""
    try:
        head = _head.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    failed = head.error is not None or (head.response is not None and head.response.status_code != 200)
    if head.line is not None:
        return head.line, failed
    found = _NUMBER.fullmatch(head.id) if isinstance(head.id, str) else None
    return (int(found[1]), failed) if found else None


def request_id(line: int) -> str:
    """The id under which a line's request runs."""
    return f"line-{line}"


def answer(call: Call, status: int, content: bytes) -> Result:
    """The API's answer to a call."""
    body = msgspec.json.decode(content)
    error = None if status == 200 else str(body["error"]["message"])
    if call.batch:
        text = _batch(call, status, body)
    else:
        text = {"line": call.line, "id": call.name} | ({"error": body["error"]} if error else _own(call, body))
    tokens = 0 if error else body.get("usage", {}).get("completion_tokens", 0)
    return Result(call.line, _line(text), error, tokens)


def refusal(line: int, error: LineError) -> Result:
    """The answer to a line that asks for nothing."""
    said = {"message": error.message, "type": "invalid_request_error", "param": None, "code": error.code}
    if error.batch:
        text = {"id": f"{_BATCH_ID}{line}", "custom_id": error.name, "response": None, "error": said}
    else:
        text = {"line": line, "id": error.name, "error": said}
    return Result(line, _line(text), error.message)


def _batch(call: Call, status: int, body: dict[str, Any]) -> dict[str, Any]:
    if isinstance(body.get("id"), str):
        # The server draws its ids; a line's is the same in every run.
        body["id"] = f"{body['id'].partition('-')[0]}-{request_id(call.line)}"
    response = {"status_code": status, "request_id": request_id(call.line), "body": body}
    return {"id": f"{_BATCH_ID}{call.line}", "custom_id": call.name, "response": response, "error": None}


def _own(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    choices = [(_chat_choice if call.url == CHAT else _choice)(choice) for choice in body["choices"]]
    usage = {name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    told = {name: body[name] for name in ("prompt_logprobs",) if name in body}
    return (choices[0] if len(choices) == 1 else {"choices": choices}) | told | {"usage": usage}


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    """Without its place and without what is null."""
    return {name: value for name, value in choice.items() if name != "index" and value is not None}


def _chat_choice(choice: dict[str, Any]) -> dict[str, Any]:
    """A message that is text alone is that text; one with more is told whole."""
    message = {name: value for name, value in choice["message"].items() if value is not None and name != "role"}
    rest = _choice({name: value for name, value in choice.items() if name != "message"})
    whole = {} if set(message) <= {"content"} else {"message": choice["message"]}
    return {"text": message.get("content", "")} | rest | whole


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
