"""Who may use the API: keys from files, each with a name and limits of its own.

`--api-keys FILE` is TOML, one table a key:

    [alice]
    key = "a secret of 16 characters or more"      # or sha256 = "the 64 hex digits of its SHA-256"
    requests_per_minute = 60                       # these three may be left out: the server's flags hold then
    tokens_per_minute = 100000
    max_concurrent = 8

`--admin-key-file FILE` has a key a line, plain or as sha256:HEX. A file that holds a plain key must be closed to group
and others, and no file may be written by them. Keys are kept as digests; a presented key is compared with every one of
them, in the same time whether one fits and which. Life: read at start, and again at SIGHUP; a file that is wrong then
changes nothing. Off switch: no file, no keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config import ConfigError

MAX_KEYS = 1000
MAX_FILE_BYTES = 1 << 20
MIN_CHARACTERS = 16
LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEX = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class ApiKey:
    """One key."""

    name: str
    digest: bytes
    limits: dict[str, int]
    """Those of `LIMITS` that its table names."""


class KeyRing:
    """Some keys."""

    def __init__(self, keys: list[ApiKey]) -> None:
        self.keys = keys

    def find(self, presented: bytes) -> ApiKey | None:
        """The key that was presented; all are compared, whichever it is."""
        digest = hashlib.sha256(presented).digest()
        found: ApiKey | None = None
        for key in self.keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found


def read_api_keys(path: str) -> KeyRing:
    """The file of `--api-keys`; ConfigError says what is wrong with it, never what is in it."""
    text, exposed = _read("--api-keys", path)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--api-keys {path}: this is no TOML ({_place(error)})") from None
    if not tables:
        raise ConfigError(f'--api-keys {path} names no key; a table such as [alice] with sha256 = "..." would work')
    if len(tables) > MAX_KEYS:
        raise ConfigError(f"--api-keys {path} names {len(tables)} keys; {MAX_KEYS} at most would work")
    keys = [_api_key(f"--api-keys {path}, [{name[:64]}]", name, table, exposed) for name, table in tables.items()]
    _refuse_equal(f"--api-keys {path}", keys)
    return KeyRing(keys)


def read_admin_keys(path: str) -> KeyRing:
    """The file of `--admin-key-file`."""
    text, exposed = _read("--admin-key-file", path)
    lines = [line.strip() for line in text.splitlines()]
    keys = []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            where = f"--admin-key-file {path}, line {number}"
            hashed = line.startswith("sha256:")
            digest = _hashed(where, line[7:]) if hashed else _plain(where, line, exposed, "sha256:HEX on its line")
            keys.append(ApiKey("admin", digest, {}))
    if not keys or len(keys) > MAX_KEYS:
        raise ConfigError(f"--admin-key-file {path} holds {len(keys)} keys; one a line, 1 to {MAX_KEYS}, would work")
    return KeyRing(keys)


def _read(flag: str, path: str) -> tuple[str, str | None]:
    """The text, and why it may hold no plain key, if it may not."""
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{flag} {path} is over {MAX_FILE_BYTES} bytes; it should hold keys alone")
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o022:
        raise ConfigError(f"{flag} {path} may be written by others than its owner; chmod 600 {path} would work")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{flag} {path} belongs to another user; a file of this one would work")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {path} is not UTF-8; it should be text") from error
    return text, f"chmod 600 {path}" if status.st_mode & 0o077 else None


def _place(error: tomllib.TOMLDecodeError) -> str:
    """Where it is wrong, without the words, which may quote the file."""
    found = re.search(r"at line \d+, column \d+", str(error))
    return found.group() if found else "at its end"


def _api_key(where: str, name: str, table: Any, exposed: str | None) -> ApiKey:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is no table; [{name[:64]}] on a line of its own would work")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a key's name has 1 to 64 letters, digits, dots, dashes and underscores")
    if unknown := set(table) - {"key", "sha256", *LIMITS}:
        raise ConfigError(f"{where}: {sorted(unknown)[0]!r} is not known; key, sha256 and {', '.join(LIMITS)} are")
    if ("key" in table) == ("sha256" in table):
        raise ConfigError(f"{where} needs one of key and sha256")
    limits: dict[str, int] = {}
    for limit in LIMITS:
        if limit in table:
            value = table[limit]
            if type(value) is not int or not 0 <= value <= 1 << 40:
                raise ConfigError(f"{where}: {limit} must be a number from 0 (no limit) up; 60 would work")
            limits[limit] = value
    if "key" in table:
        digest = _plain(where, table["key"], exposed, 'sha256 = "..." in its place')
    else:
        digest = _hashed(where, table["sha256"])
    return ApiKey(name, digest, limits)


def _plain(where: str, key: Any, exposed: str | None, instead: str) -> bytes:
    """instead: what a file that others may read can hold."""
    if exposed is not None:
        raise ConfigError(
            f"{where} holds a plain key, and others may read the file; {exposed} would work, or {instead}"
        )
    if not isinstance(key, str) or len(key) < MIN_CHARACTERS or not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ConfigError(f"{where}: a key has {MIN_CHARACTERS} printable characters or more, without spaces")
    return hashlib.sha256(key.encode("ascii")).digest()


def _hashed(where: str, digits: Any) -> bytes:
    if not isinstance(digits, str) or not _HEX.fullmatch(digits):
        raise ConfigError(f"{where}: a SHA-256 has 64 hex digits; printf %s KEY | sha256sum gives it")
    return bytes.fromhex(digits)


def _refuse_equal(where: str, keys: list[ApiKey]) -> None:
    seen: dict[bytes, str] = {}
    for key in keys:
        if (first := seen.setdefault(key.digest, key.name)) != key.name:
            raise ConfigError(f"{where}: {first} and {key.name} are the same key; each name needs one of its own")
