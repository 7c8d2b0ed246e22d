"""`octavo cache`: pins of a running server's cached prefixes. Owns nothing; the server holds them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from octavo.cli.chat import ServerSource
from octavo.config import ConfigError

PATH = "/admin/cache/pins"


def pin(source: Server, name: str, prefix: dict[str, Any], seconds: float, **owner: str | None) -> list[str]:
    """Makes a pin; what there is now, for a person. prefix: `prompt` or `messages`. owner: `tenant`, `cache_salt`."""
    body = {"name": name, "ttl_seconds": seconds, **prefix, **{key: value for key, value in owner.items() if value}}
    return _lines(source.ask("POST", PATH, json.dumps(body)))


def pins(source: Server) -> list[str]:
    """All pins."""
    return _lines(source.ask("GET", PATH, None))


def unpin(source: Server, name: str) -> list[str]:
    """Ends one."""
    return _lines(source.ask("DELETE", f"{PATH}/{quote(name, safe='')}", None))


def prefix_of(text: str | None, system: str | None, file: Path | None) -> dict[str, Any]:
    """What is pinned: text of a completion, a system message, or a JSON list of messages in a file."""
    if sum(given is not None for given in (text, system, file)) != 1:
        raise ConfigError("octavo cache pin takes one of --text, --system and --messages; --system TEXT would work")
    if text is not None:
        return {"prompt": text}
    if system is not None:
        return {"messages": [{"role": "system", "content": system}]}
    assert file is not None
    try:
        messages = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--messages {file}: {error}") from error
    if not isinstance(messages, list):
        raise ConfigError(f'--messages {file} holds no list; [{{"role": "system", "content": "..."}}] would work')
    return {"messages": messages}


class Server:
    """A server to ask, with the key that its administrator has."""

    def __init__(self, url: str, key_file: Path | None) -> None:
        self._source = ServerSource(url)
        self._headers = {"Content-Type": "application/json"}
        if key_file is not None:
            try:
                key = key_file.read_text(encoding="utf-8").split()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"--key-file {key_file}: {error}") from error
            if not key:
                raise ConfigError(f"--key-file {key_file} is empty; its first word is the key")
            self._headers["Authorization"] = f"Bearer {key[0]}"

    def ask(self, method: str, path: str, body: str | None) -> dict[str, Any]:
        """The answer's object; ConfigError with the server's sentence where it refuses."""
        url = self._source.url
        with closing(self._source.connect()) as connection:
            try:
                connection.request(method, self._source.prefix + path, body, self._headers)
                response = connection.getresponse()
                answer = json.loads(response.read())
            except (OSError, UnicodeError, ValueError, http.client.HTTPException) as error:
                raise ConfigError(f"--url {url} does not answer ({error}); start one with octavo serve") from error
        if not isinstance(answer, dict) or response.status != 200:
            raise ConfigError(f"the server at {url} answered {response.status}: {_reason(answer)}")
        return answer


def _reason(answer: Any) -> str:
    try:
        return str(answer["error"]["message"])
    except (KeyError, TypeError):
        return str(answer)[:200]


def _lines(answer: dict[str, Any]) -> list[str]:
    lines = [f"{answer['pinned_tokens']} of {answer['budget_tokens']} tokens are pinned"]
    for each in answer["pins"]:
        lines.append(f"  {each['name']:20s} {each['tokens']:7d} tokens, {each['seconds_left']:.0f} s left")
    return lines


def say_all(lines: list[str], say: Callable[[str], None]) -> None:
    for line in lines:
        say(line)
