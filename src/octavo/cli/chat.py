"""`octavo chat`: a conversation in the terminal, from a server or from an engine of its own.

Life of a line: read -> appended to the conversation -> a source streams the answer's pieces -> printed as they
come -> appended. Ctrl-C stops the answer (what came stays in the conversation); Ctrl-D or /exit leaves.
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


@dataclass(frozen=True)
class ChatOptions:
    """How answers are drawn."""

    system: str | None
    temperature: float
    max_tokens: int
    seed: int | None


class Source(Protocol):
    """Where answers come from."""

    def stream(self, messages: list[Message], options: ChatOptions) -> Iterator[str]:
        """The answer's text in pieces; closing the iterator stops the generation."""
        ...


class ServerSource:
    """Answers from an OpenAI-compatible server."""

    def __init__(self, url: str) -> None:
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
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "stream": True,
        }
        if options.seed is not None:
            body["seed"] = options.seed
        with closing(self.connect()) as connection:
            response = self.ask(connection, "POST", "/v1/chat/completions", json.dumps(body))
            for line in response:
                if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise ConfigError(f"the server failed: {event['error'].get('message')}")
                for choice in event.get("choices", []):
                    if piece := choice["delta"].get("content"):
                        yield piece

    def model(self) -> str:
        """The first model that the server names."""
        with closing(self.connect()) as connection:
            response = self.ask(connection, "GET", "/v1/models", None)
            try:
                return str(json.load(response)["data"][0]["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise ConfigError(f"--url {self.url} names no model; is it an OpenAI-compatible server?") from error

    def ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:
        """One request; anything but 200 becomes a ConfigError."""
        try:
            connection.request(method, self.prefix + path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise ConfigError(f"--url {self.url} does not answer ({error}); start one with octavo serve") from error
        if response.status != 200:
            raise ConfigError(f"the server at {self.url} answered {response.status}: {_reason(response)}")
        return response


class EngineSource:
    """Answers from an engine in this process."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def stream(self, messages: list[Message], options: ChatOptions) -> Iterator[str]:
        from octavo.llm import REFUSALS

        try:
            yield from self.llm.stream_chat(
                messages, temperature=options.temperature, max_tokens=options.max_tokens, seed=options.seed
            )
        except REFUSALS as error:
            raise ConfigError(f"the chat cannot go on: {error}; start anew with /reset") from error


def run_chat(engine: EngineConfig, url: str | None, options: ChatOptions) -> int:
    """The whole conversation; returns the exit code."""
    with _open(engine, url) as source:
        if sys.stdin.isatty():
            print("Ask away. /reset starts anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer.")
        _converse(source, options)
    return 0


def _open(engine: EngineConfig, url: str | None) -> AbstractContextManager[Source]:
    if url:
        return nullcontext(ServerSource(url))
    from octavo.llm import LLM

    class _Engine:
        def __enter__(self) -> Source:
            self.llm = LLM(config=engine)
            return EngineSource(self.llm)

        def __exit__(self, *error: object) -> None:
            self.llm.close()

    return _Engine()


def _converse(source: Source, options: ChatOptions) -> None:
    start: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(start)
    while (line := _read_line()) is not None:
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            messages = list(start)
            continue
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        try:
            answer = _print_answer(source.stream(messages, options))
        except ConfigError as error:
            if not sys.stdin.isatty():
                raise
            print(f"octavo: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _read_line() -> str | None:
    """One line from the user; None at the end of input or Ctrl-C at the prompt."""
    try:
        return input("\n> " if sys.stdin.isatty() else "")
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
    print(flush=True)
    return answer


def _reason(response: http.client.HTTPResponse) -> str:
    raw = response.read(2000)
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return raw.decode(errors="replace")[:200]
