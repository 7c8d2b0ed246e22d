"""`octavo chat`: a conversation in the terminal, from a server or from an engine of its own.

Life of a line: read -> appended to the conversation -> a source streams the answer's pieces -> printed as they
come -> appended. Ctrl-C stops the answer (what came stays in the conversation); Ctrl-D or /exit leaves.
A line that cannot be answered, or not to its end, is told on standard error and leaves the conversation; the next one
is read. Where the lines come from no terminal, the exit code then is 1.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from octavo.config import ConfigError, EngineConfig

Message = dict[str, str]
USUAL_TEMPERATURE = 0.7
"""Where neither the user nor the model says."""


class Refused(Exception):
    """A turn without an answer, or with half of one; the message is one sentence."""


@dataclass(frozen=True)
class ChatOptions:
    """How answers are drawn."""

    system: str | None
    temperature: float | None
    """None: the server's default; of an engine here, the model's or 0.7."""
    max_tokens: int
    seed: int | None


class Source(Protocol):
    """Where answers come from."""

    def stream(self, messages: list[Message], options: ChatOptions) -> Iterator[str]:
        """The answer's text in pieces; closing the iterator stops the generation. Raises Refused."""
        ...


class ServerSource:
    """Answers from an OpenAI-compatible server."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        problem = ConfigError(f"--url {url!r} is not a server's address; http://127.0.0.1:8000 would work")
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise problem from error
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise problem
        self.url = url
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connect = lambda: kind(parts.hostname or "", port)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")

    def stream(self, messages: list[Message], options: ChatOptions) -> Iterator[str]:
        body: dict[str, Any] = {
            "model": self.model(),
            "messages": messages,
            "max_tokens": options.max_tokens,
            "stream": True,
        }
        body |= {"temperature": options.temperature} if options.temperature is not None else {}
        body |= {"seed": options.seed} if options.seed is not None else {}
        with closing(self.connect()) as connection:
            response = self.ask(connection, "POST", "/v1/chat/completions", json.dumps(body))
            try:
                yield from _pieces(response)
            except (OSError, http.client.HTTPException) as error:
                raise Refused(f"the answer of {self.url} broke off ({error})") from error

    def model(self) -> str:
        """The first model that the server names."""
        with closing(self.connect()) as connection:
            response = self.ask(connection, "GET", "/v1/models", None)
            try:
                return str(json.load(response)["data"][0]["id"])
            except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
                raise Refused(f"--url {self.url} names no model; is it an OpenAI-compatible server?") from error

    def ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:
        """One request; anything but 200 is Refused."""
        try:
            connection.request(method, self.prefix + path, body, {**self.headers, "Content-Type": "application/json"})
            response = connection.getresponse()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise Refused(f"--url {self.url} does not answer ({error}); start one with octavo serve") from error
        if response.status != 200:
            raise Refused(f"the server at {self.url} answered {response.status}: {_reason(response)}")
        return response


class EngineSource:
    """Answers from an engine in this process."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def stream(self, messages: list[Message], options: ChatOptions) -> Iterator[str]:
        from octavo.llm import REFUSALS

        temperature = options.temperature
        if temperature is None and self.llm.info.sampling.temperature is None:
            temperature = USUAL_TEMPERATURE
        try:
            yield from self.llm.stream_chat(
                messages, temperature=temperature, max_tokens=options.max_tokens, seed=options.seed
            )
        except REFUSALS as error:
            raise Refused(str(error)) from error


def run_chat(engine: EngineConfig, url: str | None, options: ChatOptions, api_key: str | None = None) -> int:
    """The whole conversation; returns the exit code."""
    with _open(engine, url, api_key) as source:
        if _interactive():
            print("Ask away. /reset starts anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer.")
        refused = _converse(source, options)
    return 1 if refused and not _interactive() else 0


def _interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _open(engine: EngineConfig, url: str | None, api_key: str | None) -> AbstractContextManager[Source]:
    if url:
        return nullcontext(ServerSource(url, api_key))
    from octavo.llm import LLM

    class _Engine:
        def __enter__(self) -> Source:
            self.llm = LLM(config=engine)
            for line in (self.llm.info.name, *(f"  {line}" for line in self.llm.report)):
                print(line, file=sys.stderr, flush=True)
            return EngineSource(self.llm)

        def __exit__(self, *error: object) -> None:
            self.llm.close()

    return _Engine()


def _converse(source: Source, options: ChatOptions) -> int:
    """Answers line by line; how many were refused."""
    start: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(start)
    refused = 0
    while True:
        try:
            if (line := _read_line()) is None or line in ("/exit", "/quit"):
                return refused
            if line == "/reset":
                messages = list(start)
            elif line.strip():
                turn = {"role": "user", "content": line}
                answer = _print_answer(source.stream([*messages, turn], options))
                messages += [turn, {"role": "assistant", "content": answer}]
        except Refused as error:
            refused += 1
            print(f"octavo: {error}", file=sys.stderr, flush=True)


def _read_line() -> str | None:
    """One line from the user; None at the end of input or Ctrl-C at the prompt."""
    if sys.stdin is None:
        return None
    try:
        if _interactive():
            line = input("\n> ")
            line.encode("utf-8")
            return line
        raw = sys.stdin.buffer.readline()
        return raw.decode("utf-8").rstrip("\r\n") if raw else None
    except UnicodeError as error:
        raise Refused("the line is not UTF-8; type it again, or convert the file with iconv -t UTF-8") from error
    except (EOFError, KeyboardInterrupt):
        return None


def _print_answer(pieces: Iterator[str]) -> str:
    answer = ""
    try:
        for piece in pieces:
            answer += piece
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    except Refused:
        if answer:
            print(flush=True)
        raise
    print(flush=True)
    return answer


def _pieces(response: http.client.HTTPResponse) -> Iterator[str]:
    """The text of a stream of events, which must say that the answer is complete."""
    complete = False
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            complete = True
            continue
        try:
            event = json.loads(data)
            if "error" in event:
                raise Refused(f"the server failed: {event['error'].get('message')}")
            texts = [choice["delta"].get("content") for choice in event.get("choices", [])]
            complete = complete or any(choice.get("finish_reason") for choice in event.get("choices", []))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Refused(
                "the server sent an event that is none of a chat; is it an OpenAI-compatible server?"
            ) from error
        yield from (str(text) for text in texts if text)
    if not complete:
        raise Refused("the answer was cut off: the server ended the stream before its finish_reason; ask again")


def _reason(response: http.client.HTTPResponse) -> str:
    raw = response.read(2000)
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return raw.decode(errors="replace")[:200]
